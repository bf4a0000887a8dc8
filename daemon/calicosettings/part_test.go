package calicosettings

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// A setting that would leave the node unprotected or unreachable keeps it from being ready, with the two ways out,
// until it is withdrawn or accepted; others are notices. Both follow the datastore.
func TestCalicoSettingsFollowTheDatastore(t *testing.T) {
	tables := datastore.NewTables(zap.NewNop(), "")
	d := deps.Deps{Tables: tables, Node: deps.Node{Name: "n1",
		Felix: felixconfig.NewLocal(nil, "/etc/calico/felix.cfg", "nonsense")}}
	strict, accepting := New(d, "accept-settings", nil, false), New(d, "accept-settings", []string{"bpfEnabled"}, false)
	revision := int64(0)
	store := func(fill func(*model.FelixConfigurationSpec)) {
		f := &model.FelixConfiguration{}
		f.Name, revision = "default", revision+1
		fill(&f.Spec)
		key := model.ResourceKey(model.KindFelixConfiguration, "default")
		tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: key, Revision: revision,
			Object: &model.Object{Key: key, Value: f, Revision: revision}},
			datastore.Event{Type: datastore.EventInSync, Revision: revision})
	}
	notices := func(c *Part) string {
		var lines []string
		for _, n := range c.Notices() {
			lines = append(lines, n.Subject+": "+n.Text)
		}
		return strings.Join(lines, "\n")
	}
	const file = "felix.cfg: /etc/calico/felix.cfg, line 1: want KEY = VALUE"
	store(func(*model.FelixConfigurationSpec) {})
	if len(strict.Checks()) > 0 || notices(strict) != file {
		t.Errorf("nothing is set: %v, %s", strict.Checks(), notices(strict))
	}
	yes := true
	store(func(s *model.FelixConfigurationSpec) { s.BPFEnabled, s.DebugMemoryProfilePath = &yes, "/p" })
	const reason = "bpfEnabled is true (FelixConfiguration/default), not done: Manx has no eBPF data plane: where it " +
		"takes the place of kube-proxy, pods of a Manx node reach no Service. Withdraw the setting, or accept the " +
		"consequence with --accept-settings=bpfEnabled (MANX_ACCEPT_SETTINGS)"
	if c := strict.Checks(); len(c) != 1 || c[0].OK || c[0].Reason != reason {
		t.Errorf("checks are %+v", c)
	}
	const debug = "debugMemoryProfilePath: /p (FelixConfiguration/default) is not done: manxd writes no profile to a " +
		"file that the datastore names: take it from debugPort\n" + file
	if got := notices(strict); got != debug {
		t.Errorf("notices are %s", got)
	}
	if c := accepting.Checks(); len(c) > 0 {
		t.Errorf("accepted, but %+v", c)
	}
	const accepted = "bpfEnabled: true (FelixConfiguration/default) is not done: "
	if got := notices(accepting); !strings.HasPrefix(got, accepted) ||
		!strings.HasSuffix(got, "reach no Service (accepted with --accept-settings)\n"+debug) {
		t.Errorf("notices are %s", got)
	}
	earlier := New(d, "accept-settings", []string{"bpfEnabled", "CALICO_NETWORKING_BACKEND"}, false)
	if got := notices(earlier); !strings.Contains(got, "--accept-settings: CALICO_NETWORKING_BACKEND keeps no node "+
		"from being ready, and has its effect: remove it") {
		t.Errorf("notices are %s", got)
	}
	if err := testutil.CollectAndCompare(strict, strings.NewReader(`
# HELP manx_calico_settings Settings of Calico that are set for this node and that Manx does not have, by what follows: not_ready, notice.
# TYPE manx_calico_settings gauge
manx_calico_settings{consequence="not_ready"} 1
manx_calico_settings{consequence="notice"} 1
`)); err != nil {
		t.Error(err)
	}
	store(func(*model.FelixConfigurationSpec) {})
	strict.ipvs.Store(true)
	if c := strict.Checks(); len(c) != 1 || !strings.Contains(c[0].Reason, "kube-proxy-ipvs") {
		t.Errorf("with IPVS: %+v", c)
	}
	strict.ipvs.Store(false)
	if len(strict.Checks()) > 0 || notices(strict) != file {
		t.Errorf("withdrawn: %v, %s", strict.Checks(), notices(strict))
	}
}

// What this host sets wrong is in the log.
func TestWrongSettingsAreLogged(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	c := New(deps.Deps{Log: zap.New(core), Node: deps.Node{
		Felix: felixconfig.NewLocal([]string{"FELIX_IPINIPMTU=big"}, "felix.cfg", "nonsense")}}, "", nil, false)
	c.logWrong()
	var texts []string
	for _, l := range log.All() {
		texts = append(texts, fmt.Sprint(l.ContextMap()))
	}
	const want = "map[error:want a number source:FELIX_IPINIPMTU in the environment] " +
		"map[reason:felix.cfg, line 1: want KEY = VALUE]"
	if got := strings.Join(texts, " "); got != want {
		t.Errorf("the log has %s, want %s", got, want)
	}
}
