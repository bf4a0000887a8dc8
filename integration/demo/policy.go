package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// policies allow connections to the database only from the web pods.
const policies = `apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: demo}
spec: {order: 100}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: demo.web-to-db}
spec:
  tier: demo
  order: 10
  selector: role == 'db'
  types: [Ingress]
  ingress: [{action: Allow, source: {selector: role == 'web'}}]
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: demo.nobody-to-db}
spec:
  tier: demo
  order: 1000
  selector: role == 'db'
  types: [Ingress]
  ingress: [{action: Deny}]
`

// withdrawal names the policies, the tier last.
var withdrawal = []string{"globalnetworkpolicy/demo.web-to-db", "globalnetworkpolicy/demo.nobody-to-db", "tier/demo"}

// database is the pod that is protected; the first pod of each node is a web pod.
const database = "n3-pod2"

func isWeb(pod string) bool { return strings.HasSuffix(pod, "-pod1") }

// labelPods gives the pods their roles.
func (d *demo) labelPods() error {
	for _, p := range d.pods {
		role := "other"
		switch {
		case p.Name == database:
			role = "db"
		case isWeb(p.Name):
			role = "web"
		}
		if err := p.EditEndpoint(func(r lab.Resource) { r.Label("role", role) }); err != nil {
			return err
		}
	}
	return nil
}

// protect stores the policies and waits until exactly the expected sources are blocked.
func (d *demo) protect() error {
	if err := d.labelPods(); err != nil {
		return err
	}
	if err := d.lab.Nodes[0].Apply(policies); err != nil {
		return err
	}
	return d.waitMatrix(func(p probe) bool { return p.name != database || isWeb(p.from) })
}

func (d *demo) unprotect() error {
	if _, err := d.lab.Nodes[0].Manxctl(append([]string{"delete"}, withdrawal...)...); err != nil {
		return err
	}
	return d.waitMatrix(func(probe) bool { return true })
}

// waitMatrix waits until exactly the expected pings are answered.
func (d *demo) waitMatrix(expected func(probe) bool) error {
	return lab.Eventually(15*time.Second, func() error {
		d.reached = d.pingAll()
		for _, p := range d.probes() {
			switch {
			case d.reached[p] && !expected(p):
				return fmt.Errorf("%s reaches %s, which policy denies", p.from, p.name)
			case !d.reached[p] && expected(p):
				return fmt.Errorf("%s does not reach %s", p.from, p.name)
			}
		}
		return nil
	})
}

// showBlocked queries the node of the database for the rules that block, and the blocked sources.
func (d *demo) showBlocked() {
	i := slices.IndexFunc(d.pods, func(p *lab.Pod) bool { return p.Name == database })
	db := d.pods[i]
	printf("\n== who is blocked by which rule (manxctl explain)")
	for _, p := range d.probes() {
		if d.reached[p] {
			continue
		}
		out, err := db.Node.Manxctl("explain", d.addressOf(p.from), p.to.String(), "icmp", "-o", "json")
		var x struct {
			Allowed bool   `json:"allowed"`
			By      string `json:"by"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &x)
		}
		if err == nil && (x.Allowed || x.By == "") {
			err = fmt.Errorf("explain reports that it is allowed: %s", out)
		}
		if err != nil {
			d.failed = append(d.failed, fmt.Sprintf("no reason why %s does not reach %s: %v", p.from, p.name, err))
			continue
		}
		rule, _, _ := strings.Cut(x.By, ", ") // then comes at which end: the database's
		printf("%-9s -> %-9s %s", p.from, p.name, rule)
	}
}

// addressOf returns the source address of pings from a pod or from the router to the database.
func (d *demo) addressOf(name string) string {
	for _, p := range d.pods {
		if p.Name == name {
			return p.IP4().String()
		}
	}
	return d.lab.ToRs[0].Address(d.lab.Node("n3")).String()
}
