package follow

import (
	"context"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
)

// noBGP is the Speaker, and has the Passwords, of a node without BGP: it has no sessions and learns no routes.
type noBGP struct{}

func (noBGP) Set(context.Context, bgp.Desired) error { return nil }

func (noBGP) Take(int) []locrib.Route { return nil }

func (noBGP) Synced() (bool, string) { return true, "" }

// Changed returns a channel that never receives.
func (noBGP) Changed() <-chan struct{} { return nil }

func (noBGP) Password(string, string) (string, error) { return "", nil }

func (noBGP) Place(string, string) string { return "" }

func (noBGP) EndDecision() time.Duration { return 0 }

func (noBGP) Outdated() bool { return false }
