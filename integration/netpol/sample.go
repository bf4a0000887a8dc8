package main

import (
	"fmt"
	"slices"
)

// choose returns the cases of one ID, or n cases; without either, all.
func choose(cases []tcase, id string, n int) ([]tcase, error) {
	if id != "" {
		i := slices.IndexFunc(cases, func(c tcase) bool { return c.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("there is no case %s: the first is %s, the last %s", id, cases[0].ID,
				cases[len(cases)-1].ID)
		}
		return cases[i : i+1], nil
	}
	if n <= 0 || n >= len(cases) {
		return cases, nil
	}
	return sample(cases, n), nil
}

// sample takes n cases, the same ones each time: again and again the case with most tags that were not seen yet, and
// then the rarest ones, so that every tag is there before any is there often. They stay in the order of the file.
func sample(cases []tcase, n int) []tcase {
	have, seen := map[string]int{}, map[string]int{}
	for _, c := range cases {
		for _, tag := range c.Tags {
			have[tag]++
		}
	}
	var taken []int
	for len(taken) < n {
		best, bestNews := -1, -1.0
		for i, c := range cases {
			if slices.Contains(taken, i) {
				continue
			}
			news := 0.0
			for _, tag := range c.Tags {
				if seen[tag] == 0 {
					news++
				}
				news += 1 / float64((1+seen[tag])*have[tag])
			}
			if news > bestNews {
				best, bestNews = i, news
			}
		}
		taken = append(taken, best)
		for _, tag := range cases[best].Tags {
			seen[tag]++
		}
	}
	slices.Sort(taken)
	out := make([]tcase, n)
	for i, k := range taken {
		out[i] = cases[k]
	}
	return out
}
