package policy

import (
	"fmt"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testAccounts has rules and policies name service accounts and namespaces, by name and by labels that change. The
// labels are those of the profiles that Calico makes of them.
func (c *cluster) testAccounts(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	profile := func(name, labels string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: %s}\n"+
			"spec: {labelsToApply: {%s}}\n---\n", name, labels)
	}
	red, inner := profile("ksa.default.robot", "pcsa.team: red"), profile("kns.default", "pcns.zone: inner")
	member := c.endpoint(t, "a", func(o map[string]any) {
		o["spec"].(map[string]any)["profiles"] = []string{"ksa.default.robot", "kns.default", "k8s-pod-network"}
		o["metadata"].(map[string]any)["labels"].(map[string]any)["projectcalico.org/serviceaccount"] = "robot"
	})
	c.temporary(t, append(documents(t, red+inner), member)...)
	policy := func(spec string) string {
		return "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\n" +
			"metadata: {name: accounts, namespace: default}\nspec: {" + spec + "}\n---\n"
	}
	from := func(source string) string {
		return policy("selector: role == 'b', ingress: [{action: Allow, source: {" + source + "}}]")
	}
	const out = "types: [Egress], egress: [{action: Deny, destination: {selector: role == 'b'}}, {action: Allow}]"
	for _, x := range []struct {
		name, objects string
		a, far        string
	}{
		{"a rule names the account", from("serviceAccounts: {names: [robot]}"), answered, lost},
		{"a rule names another account", from("serviceAccounts: {names: [human]}"), lost, lost},
		{"a rule selects accounts", from("serviceAccounts: {selector: team == 'red'}"), answered, lost},
		{"the account's labels change", from("serviceAccounts: {selector: team == 'red'}") +
			profile("ksa.default.robot", "pcsa.team: blue"), lost, lost},
		{"a rule selects both", from("serviceAccounts: {names: [robot], selector: team == 'blue'}"), lost, lost},
		{"a rule selects namespaces", from("namespaceSelector: zone == 'inner'"), answered, lost},
		{"a rule selects namespaces and pods", from("namespaceSelector: zone == 'inner', selector: role == 'far'"),
			lost, lost},
		{"the namespace's labels change", from("namespaceSelector: zone == 'inner'") +
			profile("kns.default", "pcns.zone: outer"), lost, lost},
		{"all namespaces", from("namespaceSelector: all()"), answered, answered},
		{"no namespace", from("namespaceSelector: global()"), lost, lost},
		{"a policy is for accounts", policy("serviceAccountSelector: team == 'red', " + out), lost, answered},
		{"a policy is for other accounts", policy("serviceAccountSelector: team == 'blue', " + out), answered,
			answered},
		{"a policy is for namespaces", world.GlobalPolicy("accounts", "namespaceSelector: zone == 'inner', "+out), lost,
			answered},
		{"a policy was for namespaces", world.GlobalPolicy("accounts", "namespaceSelector: zone == 'inner', "+out) +
			profile("kns.default", ""), answered, answered},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.temporary(t, documents(t, x.objects)...)
			var list []attempt
			for _, to := range b.IPs {
				list = append(list, attempt{"from a", a.Namespace, "udp", at(to, 7001), x.a},
					attempt{"from far", far.Namespace, "udp", at(to, 7001), x.far})
			}
			tryAll(t, list)
		})
	}
}
