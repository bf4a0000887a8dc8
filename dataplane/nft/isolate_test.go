package nft

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
)

func someUnits(n int) []unit {
	list := make([]unit, n)
	for i := range list {
		list[i] = unit{chain, fmt.Sprint(i)}
	}
	return list
}

func TestIsolateFindsExactlyWhatIsRefused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		all := someUnits(1 + r.IntN(200))
		wrong := map[unit]bool{}
		for range 1 + r.IntN(4) {
			wrong[all[r.IntN(len(all))]] = true
		}
		var last map[unit]bool // the units that the last accepted try replaced
		tries := 0
		try := func(replaced func(unit) bool) (error, error) {
			tries++
			now := map[unit]bool{}
			for _, u := range all {
				if replaced(u) {
					now[u] = true
				} else if wrong[u] {
					return errors.New(u.name), nil
				}
			}
			last = now
			return nil, nil
		}
		refusal, _ := try(func(unit) bool { return false })
		bad, fatal := isolate(all, refusal, try)
		if fatal != nil || len(bad) != len(wrong) || len(last) != len(wrong) {
			t.Fatalf("round %d: of %d units %v are refused: found %v, %v; left out %v", round, len(all), wrong, bad,
				fatal, last)
		}
		for u := range wrong {
			if bad[u] == nil || !last[u] {
				t.Fatalf("round %d: %v is refused: found %v, left out %v", round, u, bad, last)
			}
		}
		if most := 2 + len(wrong)*(bits.Len(uint(len(all)))+1); tries > most {
			t.Fatalf("round %d: %d tries for %d of %d, at most %d are due", round, tries, len(wrong), len(all), most)
		}
	}
}

func TestIsolateOfTwoThatDoNotGoTogetherTakesTheLater(t *testing.T) {
	all := someUnits(20)
	bad, fatal := isolate(all, errors.New("loop"), func(replaced func(unit) bool) (error, error) {
		if !replaced(all[3]) && !replaced(all[11]) {
			return errors.New("loop"), nil
		}
		return nil, nil
	})
	if fatal != nil || len(bad) != 1 || bad[all[11]] == nil {
		t.Fatalf("found %v, %v", bad, fatal)
	}
}

func TestIsolateGivesUpWhenReplacingAllDoesNotHelp(t *testing.T) {
	for _, n := range []int{0, 1, 2, 1000} {
		tries := 0
		bad, fatal := isolate(someUnits(n), errors.New("no"), func(func(unit) bool) (error, error) {
			tries++
			return errors.New("no"), nil
		})
		if bad != nil || fatal != nil || tries > 12 {
			t.Errorf("%d units: found %d, %v after %d tries", n, len(bad), fatal, tries)
		}
	}
}

func TestIsolateEndsWithAnErrorThatIsNoRefusal(t *testing.T) {
	lost := errors.New("lost")
	for at := 1; at < 8; at++ {
		tries := 0
		bad, fatal := isolate(someUnits(30), errors.New("no"), func(replaced func(unit) bool) (error, error) {
			if tries++; tries == at {
				return nil, lost
			}
			if !replaced(unit{chain, "7"}) {
				return errors.New("no"), nil
			}
			return nil, nil
		})
		if tries >= at && (bad != nil || fatal != lost || tries > at) {
			t.Errorf("lost at try %d: found %v, %v after %d tries", at, bad, fatal, tries)
		}
	}
}
