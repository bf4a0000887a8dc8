package overuse

import "github.com/manxnet/manx/dataplane/policy"

// usage is how full the table of connections is, and how many connections each workload began, and answers those of
// others (To): otherwise those others could have a workload limited.
type usage struct {
	entries, most int
	of            map[policy.Limit]int
}

// share returns how many connections a workload may have in each direction: the configured number, a quarter of the
// table if that is 0.
func (u usage) share(configured int) int {
	if configured > 0 {
		return configured
	}
	return u.most / 4
}

// watched reports whether the table is full enough to read it, which costs time: half of it, or twice a share. A table
// without a bound never is.
func (u usage) watched(configured int) bool {
	return u.most > 0 && u.entries >= min(u.most/2, 2*u.share(configured))
}

// nearlyFull reports whether the next seconds may leave others without room.
func (u usage) nearlyFull() bool { return u.most > 0 && u.entries >= u.most/5*4 }

// decide returns who gets no new connections from now on, and how many connections of each are to end.
// A limit ends at three quarters of the share, so that it does not come and go with each connection.
func decide(u usage, configured int, limited map[policy.Limit]bool) (now map[policy.Limit]bool,
	excess map[policy.Limit]int) {
	share := u.share(configured)
	now, excess = map[policy.Limit]bool{}, map[policy.Limit]int{}
	for l, n := range u.of {
		if n > share || limited[l] && n > share/4*3 {
			now[l] = true
		}
		if n > share && u.nearlyFull() {
			excess[l] = n - share
		}
	}
	return now, excess
}
