package cluster

import (
	"encoding/json"
	"fmt"
)

// networkPolicy allows connections to server only from web.
const networkPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server-for-web}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 7000}]}]
`

func (w *World) networkPolicy() error {
	if err := w.Apply(networkPolicy); err != nil {
		return err
	}
	pods, err := w.pods()
	if err != nil {
		return err
	}
	address := map[string]string{}
	for _, p := range pods {
		address[p.name] = p.ip
	}
	target := address["server"] + ":7000"
	for _, p := range pods {
		if p.name == "server" {
			continue
		}
		allowed := servedBy(p.name) == "8080"
		if err := eventually(func() error {
			err := connect(w.from(p.name, target))
			switch {
			case allowed && err != nil:
				return fmt.Errorf("%s is allowed to reach server, and does not: %w", p.name, err)
			case !allowed && err == nil:
				return fmt.Errorf("%s reaches server, which the policy denies", p.name)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := w.explain(p, allowed); err != nil {
			return err
		}
	}
	_, err = w.Kubectl("delete", "networkpolicy", "server-for-web")
	if err != nil {
		return err
	}
	return eventually(func() error { return connect(w.from("client", target)) })
}

// explain has the manxd of the server's node explain a connection. The explanation must name the policy.
func (w *World) explain(from pod, allowed bool) error {
	args := []string{"explain", "default/" + from.name, "default/server", "tcp/7000"}
	out, err := w.manxd("node2", "/manxctl", append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	var x struct {
		Allowed bool   `json:"allowed"`
		By      string `json:"by"`
	}
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		return err
	}
	if x.Allowed != allowed {
		return fmt.Errorf("manxctl explain reports that %s is allowed: %t, by %s", from.name, x.Allowed, x.By)
	}
	verdict := map[bool]string{true: "allowed by ", false: "denied by "}[allowed]
	w.show("manxctl explain default/"+from.name+" default/server tcp/7000", verdict+x.By)
	return nil
}
