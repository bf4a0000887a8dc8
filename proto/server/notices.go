package server

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/reconcile"
)

func conflictText(c bgp.Conflict) string {
	return fmt.Sprintf("%s is kept, %s dropped: %s", c.Kept, strings.Join(c.Dropped, ", "), c.Reason)
}

// notices collects what a person should know: from BGP's decisions, from settings of the host that cannot be made, and
// what the daemon itself has to say.
func (s *Source) notices() []Notice {
	var all []Notice
	if s.Notices != nil {
		all = append(all, s.Notices()...)
	}
	if s.Desired != nil {
		d := s.Desired()
		for _, c := range d.Conflicts {
			all = append(all, Notice{Topic: "bgp", Subject: "session with " + c.Address.String(),
				Text: conflictText(c)})
		}
		for _, n := range d.Notices {
			all = append(all, Notice{Topic: "bgp", Subject: n.Object, Text: n.Reason})
		}
	}
	if s.Dataplane != nil {
		status := s.Dataplane.Status()
		for _, f := range status.FailedLimits {
			all = append(all, Notice{Topic: "dataplane", Subject: "bandwidth of " + f.Interface, Text: f.Reason, Since: f.Since})
		}
		for _, n := range status.Notices {
			all = append(all, Notice{Topic: "dataplane", Subject: n.Subject, Text: n.Text, Since: n.Since})
		}
		if s.Policy == nil { // which tells the same
			for _, n := range status.RefusedEndpoints {
				all = append(all, Notice{Topic: "dataplane", Subject: n.Subject, Text: n.Text, Since: n.Since})
			}
		}
		for _, x := range status.Settings {
			if x.Phase == reconcile.Failed || x.Phase == reconcile.Blocked {
				all = append(all, Notice{Topic: "dataplane", Subject: x.Key.String(), Text: x.Reason, Since: x.Since})
			}
		}
	}
	return append(all, s.policyNotices()...)
}
