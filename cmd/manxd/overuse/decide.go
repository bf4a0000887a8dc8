package overuse

// usage is how full the table of connections is, and the part of each workload, by its interface.
type usage struct {
	entries, most int
	of            map[string]int
}

// share returns how many connections a workload may have: the configured number, a quarter of the table if that is 0.
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

// decide returns the workloads that get no new connections from now on, and how many connections of each are to end.
// A limit ends at three quarters of the share, so that it does not come and go with each connection.
func decide(u usage, configured int, limited map[string]bool) (now map[string]bool, excess map[string]int) {
	share := u.share(configured)
	now, excess = map[string]bool{}, map[string]int{}
	for iface, n := range u.of {
		if n > share || limited[iface] && n > share/4*3 {
			now[iface] = true
		}
		if n > share && u.nearlyFull() {
			excess[iface] = n - share
		}
	}
	return now, excess
}
