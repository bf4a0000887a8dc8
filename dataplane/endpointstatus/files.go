package endpointstatus

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
)

// FilesConfig has the settings of Files.
type FilesConfig struct {
	// Folder returns the folder of the files, given endpointStatusPathPrefix of FelixConfiguration; nil, or an empty
	// result: no folder.
	Folder func(prefix string) string
	// Routed reports whether the kernel has the route to an address of an endpoint.
	Routed func(Endpoint, netip.Prefix) bool
	// WithPolicy requires that a workload also has its policy first; see SetPolicy.
	WithPolicy bool
	// Connected is called with the status of all connected workloads when it has changed; may be nil. Nobody changes
	// the map afterwards.
	Connected func(map[model.Key]Status)
	Logger    *zap.Logger
	Now       func() time.Time
}

// Files report to CNI plugins which workloads are connected and protected, in the folder that the state chooses.
// SetPolicy may be called at any time; otherwise not safe for concurrent use.
type Files struct {
	folder func(prefix string) string
	routed func(Endpoint, netip.Prefix) bool
	tell   func(map[model.Key]Status)
	log    *zap.Logger
	now    func() time.Time

	prefix    string // of FelixConfiguration
	moveDue   bool   // the folder has to be chosen again
	dir       string
	refused   *reconcile.Notice // why the folder that FelixConfiguration leads to is not used, nil if it is
	checkAt   time.Time         // when to check again
	target    *target           // nil: no reports
	failing   *reconcile.Notice // why files are not as desired, nil if they are
	endpoints []Endpoint
	untold    []reconcile.Notice // endpoints that cannot have a file
	synced    bool               // the datastore has been read as a whole

	policy    atomic.Pointer[Policy] // nil: policy is not programmed
	protected map[model.Key]int64    // the versions of endpoints whose policy has been in the kernel
	connected map[string]string      // the files that tell has had
}

// checkFolderEvery is the interval between checks of a refused folder.
const checkFolderEvery = 10 * time.Second

// NewFiles makes Files, without any file yet.
func NewFiles(c FilesConfig) *Files {
	f := &Files{folder: c.Folder, routed: c.Routed, tell: c.Connected, log: c.Logger, now: c.Now}
	if c.WithPolicy {
		f.policy.Store(&Policy{})
	}
	return f
}

// SetPolicy sets the endpoints whose policy is in the kernel, for the next Flush. It does not block.
func (f *Files) SetPolicy(p Policy) { f.policy.Store(&p) }

// Name is the target's in logs.
func (f *Files) Name() string { return "endpoint-status" }

// SetState applies the endpoints of a state.
func (f *Files) SetState(h *hoststate.Host) {
	f.synced = h.DatastoreSynced
	if !h.Concerned || f.folder == nil {
		return
	}
	f.prefix, f.moveDue = h.Felix.EndpointStatusPathPrefix, true
	f.endpoints, f.untold = f.endpoints[:0], nil
	before := f.protected
	f.protected = make(map[model.Key]int64, len(before))
	for k, e := range h.Usable() {
		var addresses []netip.Prefix
		for _, p := range e.Networks {
			addresses = append(addresses, p.Masked())
		}
		o := h.Reader.Get(k)
		if o == nil {
			continue
		}
		end, err := newEndpoint(k, o.Revision, e.Interface, e.MAC, addresses)
		if err != nil {
			f.log.Debug("the status file of a workload cannot be written", zap.Stringer("key", k), zap.Error(err))
			f.untold = append(f.untold,
				reconcile.Notice{Subject: k.String(), Text: "its status file is not written: " + err.Error()})
			continue
		}
		f.endpoints = append(f.endpoints, end)
		if v, ok := before[k]; ok {
			f.protected[k] = v
		}
	}
}

// choose returns the folder to use: the one that FelixConfiguration leads to, or the usual one if others could redirect
// root's writes there. A writer of the datastore is not an administrator of this host.
func (f *Files) choose() (dir string, owned bool) {
	dir, usual := f.folder(f.prefix), f.folder("")
	if dir == usual || dir == "" {
		f.refused = nil
		return dir, false
	}
	err := safefile.CheckOwned(dir)
	if err == nil {
		f.refused = nil
		return dir, true
	}
	text := "the status of workloads is not written there but in " + cmp.Or(usual, "no folder") +
		", because FelixConfiguration chose it and others than root may change it: " +
		err.Error() + "; use a folder that only root can write, or --endpoint-status-path-prefix"
	if f.refused == nil || f.refused.Text != text {
		f.refused = &reconcile.Notice{Subject: dir, Text: text, Since: f.now()}
	}
	return usual, false
}

// move switches to the folder that the current FelixConfiguration leads to. The files in the one before are no longer
// kept up to date, and so removed.
func (f *Files) move() {
	f.moveDue, f.checkAt = false, f.now().Add(checkFolderEvery)
	before := f.refused
	dir, owned := f.choose()
	if r := f.refused; r != nil && r != before {
		f.log.Warn("endpointStatusPathPrefix of FelixConfiguration is not followed", zap.String("folder", r.Subject),
			zap.String("reason", r.Text))
	}
	if dir == f.dir {
		return
	}
	if f.target != nil {
		if _, err := Cleanup(f.dir); err != nil {
			f.log.Warn("status files of workloads are left in the folder where they were kept before",
				zap.Error(err))
		}
	}
	f.dir, f.target, f.failing = dir, nil, nil
	if dir != "" {
		f.target = newTarget(dir, f.now)
	}
	if owned {
		f.target.RequireOwned()
	}
}

// note records why files are not as desired.
func (f *Files) note(err error) {
	switch {
	case err == nil:
		f.failing = nil
	case f.failing == nil || f.failing.Text != err.Error():
		f.failing = &reconcile.Notice{Subject: f.dir, Text: err.Error(), Since: f.now()}
	}
}

// Handle takes over kernel events: none concerns files.
func (f *Files) Handle([]kernel.Event) {}

// Resync makes the next Flush read the folder again.
func (f *Files) Resync() {
	if f.target != nil {
		f.target.Resync()
	}
}

// Retry makes the next Flush retry failed steps, and read the folder again.
func (f *Files) Retry() {
	if f.target != nil {
		f.target.Retry()
	}
}

// Flush applies the state of routes and policy to the files. It returns how many it tried to change, and how many of
// them failed.
func (f *Files) Flush() (steps, failures int, err error) {
	if f.moveDue || (f.refused != nil || f.failing != nil) && !f.now().Before(f.checkAt) {
		f.move()
	}
	policy := f.policy.Load()
	f.notePolicy(policy)
	connected := decide(f.endpoints, func(e Endpoint) bool {
		return policy == nil || policy.Interfaces[e.Interface] && f.protects(e)
	}, f.routed)
	f.publish(connected)
	if f.target == nil {
		return 0, 0, nil
	}
	// Files of an earlier run stay until the policy that they report can be checked: a restart changes nothing.
	f.target.Synced(f.synced && (policy == nil || policy.Reader != nil))
	f.target.Set(connected)
	steps, failures, err = f.target.Flush()
	f.note(cmp.Or(err, f.target.Health().Problem))
	return steps, failures, err
}

// publish tells the status of the workloads that have a file.
func (f *Files) publish(files map[string]string) {
	if f.tell == nil || maps.Equal(files, f.connected) {
		return
	}
	f.connected = files
	statuses := make(map[model.Key]Status, len(files))
	for _, e := range f.endpoints {
		if _, ok := files[e.file]; ok {
			statuses[e.Key] = e.status
		}
	}
	f.tell(statuses)
}

// notePolicy records the endpoints whose policy is in the kernel, each in the version known here. Policy may go on to a
// later version of an endpoint before that one is known here; a recorded success is not revoked for it.
func (f *Files) notePolicy(policy *Policy) {
	if policy == nil {
		return
	}
	for _, e := range f.endpoints {
		if !f.protects(e) && policy.has(e) {
			f.protected[e.Key] = e.Revision
		}
	}
}

// protects reports whether the policy of this version of an endpoint has been in the kernel.
func (f *Files) protects(e Endpoint) bool {
	version, ok := f.protected[e.Key]
	return ok && version == e.Revision
}

// Next returns how long the next Flush may wait if nothing happens before.
func (f *Files) Next() time.Duration {
	next := idle
	if f.target != nil {
		next = f.target.Next()
	}
	if f.refused != nil || f.failing != nil {
		next = min(next, f.checkAt.Sub(f.now()))
	}
	return max(next, time.Millisecond)
}

// idle is the interval between flushes without work.
const idle = time.Hour

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (f *Files) Repairs() ([]reconcile.Repair, int) {
	if f.target == nil {
		return nil, 0
	}
	return f.target.Repairs()
}

// Health returns the health of the files.
func (f *Files) Health() reconcile.Health {
	if f.target == nil {
		return reconcile.Health{}
	}
	return f.target.Health()
}

// Rows returns the files.
func (f *Files) Rows() []reconcile.Row {
	if f.target == nil {
		return nil
	}
	return f.target.Rows()
}

// Counts returns how many files are in each phase.
func (f *Files) Counts() map[reconcile.Phase]int {
	if f.target == nil {
		return nil
	}
	return f.target.Counts()
}

// Notices report why files are missing or outdated.
func (f *Files) Notices() []reconcile.Notice {
	var list []reconcile.Notice
	if f.target != nil {
		list = slices.Clone(f.untold)
	}
	slices.SortFunc(list, func(a, b reconcile.Notice) int { return strings.Compare(a.Subject, b.Subject) })
	for _, n := range []*reconcile.Notice{f.refused, f.failing} {
		if n != nil {
			list = append(list, *n)
		}
	}
	return list
}
