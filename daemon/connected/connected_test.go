package connected

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
)

func addressList(texts ...string) (list []kernel.Address) {
	for _, t := range texts {
		list = append(list, kernel.Address{Prefix: netip.MustParsePrefix(t)})
	}
	return list
}

func TestSubnetsOfAddresses(t *testing.T) {
	got := subnetsOf(addressList("10.0.0.5/24", "127.0.0.1/8", "10.0.0.9/24", "10.244.0.1/32", "fd00::5/64",
		"fe80::1/64", "169.254.1.1/16", "192.0.2.0/31", "::1/128"))
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/31"),
		netip.MustParsePrefix("fd00::/64")}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// While addresses cannot be read the last subnets stay in force, and they are read again without another event.
func TestConnectedSubnetsSurviveAnError(t *testing.T) {
	var now atomic.Pointer[[]kernel.Address]
	set := func(list []kernel.Address) { now.Store(&list) }
	changed := make(chan struct{}, 10)
	set(addressList("10.0.0.5/24"))
	var failed atomic.Int64
	c := newSubnets(fakeKernel{addresses: func() ([]kernel.Address, error) {
		if list := *now.Load(); list != nil {
			return list, nil
		}
		failed.Add(1)
		return nil, errors.New("no buffer space available")
	}}, func() { changed <- struct{}{} }, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go c.Run(ctx) //nolint:errcheck // ends with ctx
	set(nil)
	c.readAgain()
	for end := time.Now().Add(time.Minute); failed.Load() < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("after an error the addresses are not read again")
		}
	}
	if got := c.List(); len(got) != 1 || got[0] != netip.MustParsePrefix("10.0.0.0/24") {
		t.Errorf("after an error: %v", got)
	}
	set(addressList("10.0.0.5/24", "10.7.0.1/16"))
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Fatal("the new subnet was not found")
	}
	if got := c.List(); len(got) != 2 {
		t.Errorf("%v, want two subnets", got)
	}
}
