package speaker

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp/fib"
)

// conflictsAge is for how long an answer about conflicts is good: each costs GoBGP a stop.
const conflictsAge = 5 * time.Second

// conflicts remembers who announces prefixes of ours, apart from blocks, which are refused. Best path selection prefers
// our own path unless another has a greater LOCAL_PREF, so that most others never reach the table of learned routes.
type conflicts struct {
	mu      sync.Mutex
	read    time.Time
	reading bool
	list    []fib.Rejection
}

// conflicting returns the paths of other speakers for prefixes that this node originates, as last seen. When that was
// some time ago it has them looked for again, but does not wait: GoBGP may have much else to do.
func (s *Speaker) conflicting() []fib.Rejection {
	c := &s.conflicts
	c.mu.Lock()
	defer c.mu.Unlock()
	if run := s.current(); run != nil && !c.reading && time.Since(c.read) > conflictsAge {
		c.reading = true
		go func() {
			list := s.readConflicts(run)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.list, c.read, c.reading = list, time.Now(), false
		}()
	}
	return c.list
}

func (s *Speaker) readConflicts(run *speakerRun) (list []fib.Rejection) {
	err := run.learnedPaths(s.fib.OwnPrefixes(), func(p *apiutil.Path) {
		if t := tablePath(p); t != nil {
			list = append(list, s.fib.Conflict(t.Prefix.Masked(), p))
		}
	})
	if err != nil {
		s.log.Debug("look for other speakers of own prefixes", zap.Error(err))
	}
	return list
}

// learnedPaths calls f with the paths in GoBGP's table that peers have sent for exactly these prefixes.
func (r *speakerRun) learnedPaths(prefixes []netip.Prefix, f func(*apiutil.Path)) error {
	byFamily := map[gobgp.Family][]*apiutil.LookupPrefix{}
	for _, p := range prefixes {
		family := gobgp.RF_IPv4_UC
		if p.Addr().Is6() {
			family = gobgp.RF_IPv6_UC
		}
		byFamily[family] = append(byFamily[family],
			&apiutil.LookupPrefix{Prefix: p.String(), LookupOption: apiutil.LOOKUP_EXACT})
	}
	var errs []error
	for family, list := range byFamily {
		errs = append(errs, r.listPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL,
			Family: family, Prefixes: list},
			func(_ gobgp.NLRI, paths []*apiutil.Path) {
				for _, p := range paths {
					if p.PeerAddress.IsValid() && !p.PeerAddress.IsUnspecified() {
						f(p)
					}
				}
			}))
	}
	return errors.Join(errs...)
}
