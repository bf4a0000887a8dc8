package nft

import "sort"

// isolate finds the units without which the rest is accepted, given the refusal of all of them together. try requests
// all units with replacements for those for which replaced returns true, and returns why it was refused, or an error
// that ends the search. The last try that was accepted had all units but the bad ones, whose reasons are returned. Each
// bad unit costs one try for each doubling of the number of units, and one more. It returns nil if even replacing all
// of them does not help.
//
// Units are taken in order: where one of two would do, it is the later one.
func isolate(
	units []unit, refusal error, try func(replaced func(unit) bool) (refused, fatal error),
) (bad map[unit]error, fatal error) {
	place := make(map[unit]int, len(units))
	for i, u := range units {
		place[u] = i
	}
	bad = map[unit]error{}
	// prefix tries the first n units and replaces the others.
	prefix := func(n int) (refused error) {
		if fatal == nil {
			refused, fatal = try(func(u unit) bool {
				i, known := place[u]
				return known && (i >= n || bad[u] != nil)
			})
		}
		return refused
	}
	for good, proven := 0, false; good < len(units) && fatal == nil; {
		reasons := map[int]error{len(units): refusal}
		first := good + 1 + sort.Search(len(units)-good-1, func(i int) bool {
			n := good + 1 + i
			reasons[n] = prefix(n)
			return reasons[n] != nil
		})
		bad[units[first-1]] = reasons[first]
		if !proven && first == 1 && len(units) > 1 && prefix(first) != nil {
			return nil, fatal
		}
		proven, good = true, first
		if refusal = prefix(len(units)); refusal == nil && fatal == nil {
			return bad, nil
		}
	}
	return nil, fatal
}
