package cluster

import "testing"

// TestCapturedLines tells packets of pods from those of WireGuard, as tcpdump prints them.
func TestCapturedLines(t *testing.T) {
	for line, want := range map[string][2]bool{
		"IP 10.244.166.128.33166 > 10.244.104.0.8080: Flags [.], ack 1, length 0": {true, false},
		"IP 10.200.1.12.51820 > 10.200.1.13.51820: UDP, length 148":               {false, true},
		"IP 10.200.1.12.179 > 10.200.1.13.33166: Flags [.], ack 1, length 0":      {false, false},
	} {
		if got := [2]bool{plain.MatchString(line), sealed.MatchString(line)}; got != want {
			t.Errorf("%s: plain and sealed are %v, want %v", line, got, want)
		}
	}
}
