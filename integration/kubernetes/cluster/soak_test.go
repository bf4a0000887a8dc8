package cluster

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// soakSeed is MANX_SOAK_SEED, or a random one.
func soakSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("MANX_SOAK_SEED")
	if text == "" {
		return uint64(rand.Uint32())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func (s soakPlan) step() Step {
	return Step{"random faults: no ping is lost", func(w *World) error { return w.soak(s) }}
}

// TestSoak has random faults for MANX_SOAK, such as 8m or 1h. It runs if MANX_SOAK is set.
func TestSoak(t *testing.T) {
	text := os.Getenv("MANX_SOAK")
	if text == "" {
		t.Skip("how long? Run `make soak`")
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	binaries(t)
	install, err := Shipped("../../..", Network{BGP, lab.IPv4}, false)
	if err != nil {
		t.Skip(err)
	}
	s := soakPlan{seed: soakSeed(t), duration: duration, apart: crashesApart}
	if text := os.Getenv("MANX_SOAK_APART"); text != "" {
		if s.apart, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	run(t, install, append(Steps(install.Network())[:4:4], s.step(),
		Step{"two crashes within a second: the cost", (*World).crashTwice},
		Step{"manxd hangs: the kubelet starts another container", (*World).hangs}))
}
