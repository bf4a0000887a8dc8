package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func serviceEvent(kind, name, service, affinity string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"apiVersion":"v1","kind":"Service",
		"metadata":{"namespace":"n","name":%q},"spec":{"type":%q,"sessionAffinity":%q}}}`+"\n",
		kind, name, service, affinity)
}

// TestAffinityConfiguresRouter reads the events of Services that come, switch their affinity and go.
func TestAffinityConfiguresRouter(t *testing.T) {
	events := serviceEvent("ADDED", "kubernetes", "ClusterIP", "ClientIP") + // no client of the router has it
		serviceEvent("ADDED", "a", "LoadBalancer", "None") +
		serviceEvent("ADDED", "b", "LoadBalancer", "ClientIP") +
		serviceEvent("MODIFIED", "a", "LoadBalancer", "ClientIP") +
		serviceEvent("MODIFIED", "b", "LoadBalancer", "None") +
		serviceEvent("MODIFIED", "a", "ClusterIP", "ClientIP") +
		serviceEvent("MODIFIED", "b", "LoadBalancer", "ClientIP") +
		serviceEvent("DELETED", "b", "LoadBalancer", "ClientIP")
	var got []string
	err := applyEvents(strings.NewReader(events), func(policy string) error {
		got = append(got, policy)
		return nil
	})
	if want := []string{byPorts, byAddresses, byPorts, byAddresses, byPorts}; err != nil || !slices.Equal(got, want) {
		t.Errorf("policies %q (%v), want %q", got, err, want)
	}
}

// TestAffinityFailures: a watch that breaks and a router that cannot be set are errors, and the watch is repeated.
func TestAffinityFailures(t *testing.T) {
	refused := errors.New("refused")
	event := serviceEvent("ADDED", "a", "LoadBalancer", "None")
	for name, c := range map[string]struct {
		events string
		set    error
	}{
		"half an event": {event + event[:len(event)/2], nil},
		"server's":      {event + `{"type":"ERROR","object":{"kind":"Status","code":410}}`, nil},
		"the router's":  {event, refused},
	} {
		err := applyEvents(strings.NewReader(c.events), func(string) error { return c.set })
		if err == nil || c.set != nil && !errors.Is(err, c.set) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestTestsOfAffinityRunAlone: the router has one setting for all Services.
func TestTestsOfAffinityRunAlone(t *testing.T) {
	const balanced = "[sig-network] LoadBalancers [Feature:LoadBalancer] "
	for _, c := range []struct {
		alone bool
		name  string
	}{
		{true, balanced + "should be able to switch session affinity for LoadBalancer service with Local"},
		{true, balanced + "should have session affinity work for LoadBalancer service with Cluster traffic policy"},
		{false, balanced + "should be able to change the type and ports of a TCP service [Slow]"},
		{false, "[sig-network] Services should have session affinity work for service with type clusterIP"},
	} {
		if runsAlone(c.name) != c.alone {
			t.Errorf("%s alone: %v, want %v", c.name, !c.alone, c.alone)
		}
	}
}
