package main

import "testing"

func TestEndpointStatusDir(t *testing.T) {
	for _, x := range []struct{ flag, felix, want string }{
		{"", "", "/var/run/calico/endpoint-status"},
		{"", "/felix", "/felix/endpoint-status"},
		{"/flag", "/felix", "/flag/endpoint-status"},
		{"/flag", "none", "/flag/endpoint-status"},
		{"", "none", ""},
		{"None", "/felix", ""},
	} {
		o := options{endpointStatusPrefix: x.flag}
		if got := o.endpointStatusDir(x.felix); got != x.want {
			t.Errorf("flag %q, FelixConfiguration %q: %q, want %q", x.flag, x.felix, got, x.want)
		}
	}
}
