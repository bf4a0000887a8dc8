package main

import (
	"strings"
	"testing"
)

func TestBMPFlags(t *testing.T) {
	for _, tc := range []struct{ collectors, policy, wrong string }{
		{"", "pre-policy", ""},
		{"192.0.2.1:1790, [2001:db8::1]:1790", "all", ""},
		{"collector:1790", "all", "want ADDRESS:PORT"},
		{"192.0.2.1", "all", "want ADDRESS:PORT"},
		{"192.0.2.1:0", "all", "want ADDRESS:PORT"},
		{"", "both", "--bmp-policy"},
	} {
		list, err := (&bgpOptions{bmpCollectors: tc.collectors, bmpPolicy: tc.policy}).bmp("n")
		switch {
		case tc.wrong == "" && (err != nil || len(list) != strings.Count(tc.collectors, "179")):
			t.Errorf("%q, %q: %v, %v", tc.collectors, tc.policy, list, err)
		case tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)):
			t.Errorf("%q, %q: error %v, want %q", tc.collectors, tc.policy, err, tc.wrong)
		}
	}
}
