package bgp

import "slices"

// Of returns the results that concern one object, such as "BGPPeer/tor-1" or "BGPConfiguration/default": the sessions
// that it configures, the conflicts that it won or lost, and the notices about it.
func (d Desired) Of(object string) (sessions []Session, conflicts []Conflict, notices []Notice) {
	for _, s := range d.Sessions {
		if slices.Contains(s.From, object) {
			sessions = append(sessions, s)
		}
	}
	for _, c := range d.Conflicts {
		if c.Kept == object || slices.Contains(c.Dropped, object) {
			conflicts = append(conflicts, c)
		}
	}
	for _, n := range d.Notices {
		if n.Object == object {
			notices = append(notices, n)
		}
	}
	return sessions, conflicts, notices
}
