package route

// Changes are the places whose rows may differ from those taken last, for one follower.
type Changes struct {
	all    bool
	places map[place]bool
}

// mostChanges bounds how many changed rows are remembered. A follower that has missed more reads all rows.
const mostChanges = 1 << 14

// Follow begins to remember changes, until Unfollow. All rows are among the first.
func (t *Target) Follow() *Changes {
	c := &Changes{all: true, places: map[place]bool{}}
	t.table.followers[c] = true
	return c
}

// Unfollow ends a Follow.
func (t *Target) Unfollow(c *Changes) { delete(t.table.followers, c) }

// Changed returns the rows that may differ since the last call, in no order; of one that is gone only prefix and table
// are set. If all is true these are all rows there are. The cost is that of the changes.
func (t *Target) Changed(c *Changes) (rows []Status, all bool) {
	all = c.all
	if all {
		rows = t.Statuses()
	}
	for p := range c.places {
		if all {
			break
		}
		row := Status{Prefix: p.dst, Table: p.table}
		if n := t.table.rows.findPlace(p); n != 0 && (t.table.row(n).desired() || t.anyRoute(n) != 0) {
			row = t.line(n)
		}
		rows = append(rows, row)
	}
	c.all, c.places = false, map[place]bool{}
	return rows, all
}

// Gone reports whether there is no such row any more.
func (s Status) Gone() bool { return s.Phase == "" }

// notify marks a row as changed for followers.
func (t *table) notify(n uint32) {
	for c := range t.followers {
		if c.all {
			continue
		}
		c.places[place{t.rows.Prefix(n), t.row(n).table}] = true
		c.all = len(c.places) > mostChanges
	}
}

// notifyAll marks every row as changed for followers.
func (t *table) notifyAll() {
	for c := range t.followers {
		c.all = true
	}
}
