package driver

import (
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Objects are the objects of one kind on a host. A key with a method "Link() string" belongs to the interface of that
// name: the object is read again when the interface comes, goes or changes.
type Objects[K, V comparable] interface {
	// Desired returns the objects that the host should have while it has these interfaces, by name. Its result depends
	// on nothing else, except what Config.Look has read.
	Desired(h *hoststate.Host, links map[string]kernel.Link) map[K]V
	// List and Apply are those of reconcile.Applier. An undesired object is removed by Apply, or left as it is.
	reconcile.Applier[K, V]
}

// Config has the parameters of a Driver.
type Config[K, V comparable] struct {
	// Name is that of the target in logs, in the control API and in metrics.
	Name string
	// Part names the objects in the results of a retry. Targets may have a part together.
	Part string
	// Prune reports whether objects of earlier runs may be removed; nil: as soon as the datastore has been read.
	Prune func(*hoststate.Host) bool
	// Follows reports whether the objects may differ with a state; nil: if the state concerns the host.
	Follows func(*hoststate.Host) bool
	// Look reads more of the host before each comparison; nil: nothing.
	Look func()
	// Read reads one object, so that a change of an interface has only its own objects read; nil: List reads all.
	Read func(K) (v V, ok bool, err error)
	// ListLinks lists the host's interfaces.
	ListLinks func() ([]kernel.Link, error)
	// Now is the clock.
	Now func() time.Time
}

const (
	// checkEvery is the time between two comparisons: the kernel has no events for most changes.
	checkEvery = 10 * time.Second
	// rounds bounds the rounds of a Flush, of which each may make the next one possible: a device has an MTU once it
	// exists.
	rounds = 4
)

// Driver keeps the objects as desired. Types embed it, and have its methods as those of an agent's target; they pass
// themselves as Objects. Not safe for concurrent use.
type Driver[K, V comparable] struct {
	reconcile.Checked[K, V]
	config  Config[K, V]
	objects Objects[K, V]
	host    *hoststate.Host
	links   map[string]kernel.Link
	names   map[int]string // of links, by index
	wanted  map[K]V
	stale   bool            // the desired objects may differ
	touched map[string]bool // interfaces whose objects may differ
	unknown []K             // amended ones whose actual value may not be known
}

// New makes a Driver of objects.
func New[K, V comparable](objects Objects[K, V], c Config[K, V]) *Driver[K, V] {
	if c.Prune == nil {
		c.Prune = func(h *hoststate.Host) bool { return h.DatastoreSynced }
	}
	if c.Follows == nil {
		c.Follows = func(h *hoststate.Host) bool { return h.Concerned }
	}
	return &Driver[K, V]{config: c, objects: objects, links: map[string]kernel.Link{}, names: map[int]string{},
		touched: map[string]bool{},
		Checked: reconcile.NewChecked(objects, c.Part, checkEvery, c.Now)}
}

// Name is the target's in logs.
func (d *Driver[K, V]) Name() string { return d.config.Name }

// SetState applies a state.
func (d *Driver[K, V]) SetState(h *hoststate.Host) {
	d.host = h
	d.Table.Prune(d.config.Prune(h))
	follows := d.config.Follows(h) // it may take note of the state, so it is asked each time
	d.stale = d.stale || follows
}

// Handle takes over kernel events about interfaces.
func (d *Driver[K, V]) Handle(events []kernel.Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventResync:
			d.Resync()
		case kernel.EventLink:
			d.SeeLink(e.Link)
		case kernel.EventLinkGone:
			if d.links[e.Link.Name].Index == e.Link.Index {
				d.LoseLink(e.Link.Name)
			}
		}
	}
}

// SeeLink takes over an interface.
func (d *Driver[K, V]) SeeLink(l kernel.Link) {
	old := d.links[l.Name]
	if old.Running = l.Running; old == l {
		d.links[l.Name] = l // no object depends on the carrier, which a workload can take away as often as it likes
		return
	}
	if before := d.names[l.Index]; before != "" && before != l.Name {
		d.LoseLink(before)
	}
	delete(d.names, old.Index) // another interface had the name
	d.links[l.Name], d.names[l.Index] = l, l.Name
	d.Touch(l.Name)
}

// LoseLink takes note of the end of an interface, also before its event: nothing is wanted of it any more.
func (d *Driver[K, V]) LoseLink(name string) {
	delete(d.names, d.links[name].Index)
	delete(d.links, name)
	d.Touch(name)
}

// Touch has the objects of an interface read again.
func (d *Driver[K, V]) Touch(link string) { d.touched[link], d.stale = true, true }

// DecideAgain has the next Flush determine the desired objects again: something differs on which they depend, beside
// the host's state and its interfaces.
func (d *Driver[K, V]) DecideAgain() { d.stale = true }

// Link returns an interface by its name; its Index is 0 if there is none.
func (d *Driver[K, V]) Link(name string) kernel.Link { return d.links[name] }

// LinkName returns the name of an interface, empty if there is none.
func (d *Driver[K, V]) LinkName(index int) string { return d.names[index] }

// Wanted returns the desired objects. They must not be changed.
func (d *Driver[K, V]) Wanted() map[K]V { return d.wanted }

// Amend takes over a few desired objects that differ, and some that are not desired any more, as the next call of
// Desired would have them. The cost follows their number.
func (d *Driver[K, V]) Amend(set map[K]V, gone []K) {
	if d.stale || d.wanted == nil {
		d.stale = true // all are decided again anyway
		return
	}
	for _, k := range gone {
		if _, still := set[k]; !still {
			delete(d.wanted, k)
			d.Table.Unset(k)
		}
	}
	for k, v := range set {
		if _, known := d.wanted[k]; !known {
			d.unknown = append(d.unknown, k)
		}
		d.wanted[k] = v
		d.Table.Set(k, v)
	}
}

// Flush applies the desired objects. It returns the number of changes that were tried and of failures.
func (d *Driver[K, V]) Flush() (steps, failures int, err error) {
	for range rounds {
		if d.Due() {
			err = d.Compare(d.look)
		} else if d.stale || len(d.unknown) > 0 {
			err = d.follow()
		}
		if err != nil {
			return steps, failures, err
		}
		n, failed := d.Table.Flush()
		steps, failures = steps+n, failures+failed
		if !d.stale {
			break
		}
	}
	d.Rest()
	return steps, failures, d.Failure()
}

// Next returns how long the next Flush may wait if nothing happens before.
func (d *Driver[K, V]) Next() time.Duration {
	if d.stale || len(d.unknown) > 0 {
		return time.Millisecond
	}
	return d.Checked.Next()
}

// look reads the host before a comparison.
func (d *Driver[K, V]) look() error {
	links, err := d.config.ListLinks()
	if err != nil {
		return err
	}
	clear(d.links)
	clear(d.names)
	for _, l := range links {
		d.links[l.Name], d.names[l.Index] = l, l.Name
	}
	if d.config.Look != nil {
		d.config.Look()
	}
	d.unknown = nil // all are read
	d.decide()
	return nil
}

// follow decides again, and reads the objects that may differ.
func (d *Driver[K, V]) follow() error {
	unknown := d.unknown
	d.unknown = nil
	if d.stale {
		unknown = append(unknown, d.decide()...)
	}
	if len(unknown) == 0 {
		return nil
	}
	if d.config.Read == nil {
		return d.Compare(d.look)
	}
	for _, k := range unknown {
		if err := d.observe(k); err != nil {
			d.Resync()
			return err
		}
	}
	return nil
}

func (d *Driver[K, V]) observe(k K) error {
	v, ok, err := d.config.Read(k)
	if err != nil {
		return err
	}
	if ok {
		d.Table.Observe(k, v)
		return nil
	}
	if name := linkOf(k); name != "" && d.links[name].Index == 0 {
		d.Table.Unset(k) // first: it went with the interface, and no other program took it away
	}
	d.Table.ObserveGone(k)
	return nil
}

// decide sets the desired objects in the table. It returns those whose actual value may not be known.
func (d *Driver[K, V]) decide() (unknown []K) {
	fresh := d.objects.Desired(d.host, d.links)
	for k, v := range fresh {
		if _, known := d.wanted[k]; !known || d.touched[linkOf(k)] {
			unknown = append(unknown, k)
		}
		d.Table.Set(k, v)
	}
	for k := range d.wanted {
		if _, still := fresh[k]; still {
			continue
		}
		d.Table.Unset(k)
		switch name := linkOf(k); {
		case d.touched[name] && d.links[name].Index == 0:
			d.Table.ObserveGone(k) // it went with the interface
		case d.touched[name]:
			unknown = append(unknown, k)
		}
	}
	d.wanted, d.stale = fresh, false
	clear(d.touched)
	return unknown
}

// linkOf returns the interface that an object belongs to, empty for none.
func linkOf(k any) string {
	if k, ok := k.(interface{ Link() string }); ok {
		return k.Link()
	}
	return ""
}
