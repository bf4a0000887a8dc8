package settings

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// Every field of every kind has its row, and so has every parameter of Felix; no row is about something else.
func TestEverySettingHasARow(t *testing.T) {
	wanted := map[[2]string]bool{}
	seen := map[reflect.Type]bool{}
	var visit func(t reflect.Type, place string)
	visit = func(typ reflect.Type, place string) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || !ours(typ) || place == "" && seen[typ] {
			return
		}
		seen[typ] = true
		if place == "" {
			place = placeOf(typ)
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous:
				visit(f.Type, place)
				continue
			case name == "metadata" || name == "-":
				continue
			case name != "spec" && name != "status":
				wanted[[2]string{place, name}] = true
			}
			visit(f.Type, "")
		}
	}
	for _, k := range model.Kinds() {
		if k.Resource {
			visit(reflect.TypeOf(k.New()), "")
		}
	}
	for _, p := range felixconfig.Parameters() {
		if p.Field == "" {
			wanted[[2]string{ofFelixPlace, p.Name}] = true
		}
	}
	if len(wanted) < 500 {
		t.Errorf("only %d fields were found", len(wanted))
	}
	have := map[[2]string]bool{}
	for _, r := range Rows() {
		key := [2]string{r.Place, r.Name}
		if have[key] {
			t.Errorf("%s.%s has two rows", r.Place, r.Name)
		}
		have[key] = true
		switch r.Place {
		case Environment, ofCNI, ofAnnotations, Kind, ofHost:
		default:
			if !wanted[key] {
				t.Errorf("%s.%s is no setting", r.Place, r.Name)
			}
		}
		if r.State != Done && r.Text == "" {
			t.Errorf("%s.%s is %s without a sentence", r.Place, r.Name, r.State)
		}
	}
	for key := range wanted {
		if !have[key] {
			t.Errorf("%s.%s has no row: what does Manx do with it?", key[0], key[1])
		}
	}
}

func felixConfiguration(name string, fill func(*model.FelixConfigurationSpec)) *model.Object {
	f := &model.FelixConfiguration{}
	f.Name = name
	fill(&f.Spec)
	return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, name), f)
}

// lines are the settings that matter, with their sources.
func lines(list []Finding) string {
	var out []string
	for _, f := range list {
		if f.Matters() {
			line := f.Source + ": " + f.Name + "=" + f.Value
			if f.Danger() {
				line += " (danger)"
			}
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// The variables of Calico's own manifests and of kubespray, and the objects that Calico's programs write by themselves,
// ask for nothing that Manx does not do.
func TestAStockInstallationIsSilent(t *testing.T) {
	local := felixconfig.NewLocal([]string{"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", "FELIX_HEALTHENABLED=true",
		"FELIX_IPINIPMTU=0", "FELIX_VXLANMTU=0", "FELIX_WIREGUARDMTU=0", "FELIX_IPV6SUPPORT=false",
		"FELIX_TYPHAK8SSERVICENAME=calico-typha", "FELIX_IPTABLESREFRESHINTERVAL=60", "FELIX_HEALTHHOST=localhost",
		"FELIX_IPTABLESBACKEND=Auto", "FELIX_IPTABLESLOCKTIMEOUTSECS=10", "FELIX_LOGSEVERITYSCREEN=info",
		"FELIX_USAGEREPORTINGENABLED=False", "FELIX_CHAININSERTMODE=Insert", "FELIX_PROMETHEUSMETRICSENABLED=False",
		"FELIX_PROMETHEUSMETRICSPORT=9091", "FELIX_PROMETHEUSGOMETRICSENABLED=True", "FELIX_IGNORELOOSERPF=False",
		"FELIX_PROMETHEUSPROCESSMETRICSENABLED=True", "FELIX_BPFENABLED=no", "FELIX_WIREGUARDENABLED=false",
		"FELIX_AWSSRCDSTCHECK=DoNothing"}, "", "")
	bgp := &model.BGPConfiguration{}
	bgp.Spec.LogSeverityScreen = "Info"
	r := model.NewSet(felixConfiguration("default", func(s *model.FelixConfigurationSpec) {
		no, port, vni := false, 9099, 4096
		s.LogSeverityScreen, s.BPFLogLevel, s.HealthPort, s.VXLANVNI, s.BPFEnabled = "Info", "", &port, &vni, &no
		s.ReportingInterval = &metav1.Duration{}
		s.FlowLogsFlushInterval = &metav1.Duration{Duration: 15 * time.Second}
	}), model.NewObject(model.ResourceKey(model.KindIPPool, "pods"), &model.IPPool{Spec: model.IPPoolSpec{
		CIDR: "10.244.0.0/16", IPIPMode: "Always", VXLANMode: "Never"}}),
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), bgp))
	env := map[string]string{"CALICO_NETWORKING_BACKEND": "bird", "CALICO_DISABLE_FILE_LOGGING": "true",
		"CLUSTER_TYPE": "k8s,bgp", "DATASTORE_TYPE": "kubernetes", "CALICO_IPV4POOL_VXLAN": "Never"}
	list := Here(Input{Reader: r, Node: "n1", Local: local, Getenv: func(name string) string { return env[name] }})
	if got := lines(list); got != "" {
		t.Errorf("a stock installation:\n%s", got)
	}
	if len(list) < 30 {
		t.Errorf("only %d settings are set", len(list))
	}
}

// The value in force counts, whatever the sources below it say.
func TestSettingsThatMatter(t *testing.T) {
	yes := true
	on := func(s *model.FelixConfigurationSpec) { s.BPFEnabled, s.WireguardHostEncryptionEnabled = &yes, &yes }
	r := model.NewSet(felixConfiguration("default", on), felixConfiguration("node.n1",
		func(s *model.FelixConfigurationSpec) { s.PolicySyncPathPrefix = "/var/run/nodeagent" }),
		felixConfiguration("node.n2", func(s *model.FelixConfigurationSpec) {
			s.WireguardHostEncryptionEnabled = &yes
		}),
		model.NewObject(model.ResourceKey(model.KindIPPool, "pods"), &model.IPPool{Spec: model.IPPoolSpec{
			CIDR: "10.244.0.0/16", VXLANMode: "CrossSubnet"}}))
	local := felixconfig.NewLocal([]string{"FELIX_WIREGUARDHOSTENCRYPTIONENABLED=false",
		"FELIX_DEBUGMEMORYPROFILEPATH=/p", "FELIX_FOO=1",
		"FELIX_IPINIPMTU=big", "FELIX_WIREGUARDINTERFACENAME=wg0"}, "", "")
	env := map[string]string{"CALICO_NETWORKING_BACKEND": "none", "ETCD_PASSWORD": "x"}
	got := lines(Here(Input{Reader: r, Node: "n1", Local: local, IPVS: true, Unread: []string{"AdminNetworkPolicy"},
		Getenv: func(name string) string { return env[name] }}))
	want := `FELIX_FOO in the environment: FOO=(set)
FelixConfiguration/default: bpfEnabled=true (danger)
FELIX_DEBUGMEMORYPROFILEPATH in the environment: debugMemoryProfilePath=/p
FELIX_IPINIPMTU in the environment: ipipMTU (wrong value)=big
FelixConfiguration/node.n1: policySyncPathPrefix=/var/run/nodeagent
FELIX_WIREGUARDINTERFACENAME in the environment: wireguardInterfaceName=wg0
Kubernetes: AdminNetworkPolicy=in use (danger)
the interface kube-ipvs0: kube-proxy-ipvs=in use (danger)`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if want := []string{"AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "bpfEnabled",
		"kube-proxy-ipvs", "wireguard-without-networking"}; !slices.Equal(Holding(), want) {
		t.Errorf("these hold a node: %q", Holding())
	}
}

// Only a node whose network another program makes does not encrypt.
func TestEncryptionWithoutNetworking(t *testing.T) {
	r := model.NewSet(felixConfiguration("default", func(s *model.FelixConfigurationSpec) {
		yes := true
		s.WireguardEnabled = &yes
	}))
	in := Input{Reader: r, Node: "n1", Local: felixconfig.NewLocal([]string{"FELIX_WIREGUARDENABLEDV6=no"}, "", "")}
	if got := lines(Here(in)); got != "" {
		t.Errorf("with networking: %s", got)
	}
	in.PolicyOnly = true
	const want = "FelixConfiguration/default: wireguard-without-networking=wireguardEnabled=true (danger)"
	if got := lines(Here(in)); got != want {
		t.Errorf("without: %s, want %s", got, want)
	}
	in.Local = felixconfig.NewLocal([]string{"FELIX_WIREGUARDENABLED=false"}, "", "")
	if got := lines(Here(in)); got != "" {
		t.Errorf("switched off here: %s", got)
	}
}

// Felix's word for no value is no dangerous one. What may be a secret is not shown: notices and archives for support
// have these texts.
func TestValuesOfThisHost(t *testing.T) {
	for environment, want := range map[string]string{
		"FELIX_BPFENABLED=none":                     "",
		"FELIX_WIREGUARDHOSTENCRYPTIONENABLED=None": "",
		"FELIX_BPFENABLED=yes":                      "FELIX_BPFENABLED in the environment: bpfEnabled=yes (danger)",
		"FELIX_ETCDPASSWORD=hunter2":                "FELIX_ETCDPASSWORD in the environment: ETCDPASSWORD=(set)",
		"FELIX_ETCDENDPOINTS=https://root:hunter2@h:2379": "FELIX_ETCDENDPOINTS in the environment: " +
			"EtcdEndpoints=https://(hidden)@h:2379",
	} {
		got := lines(Here(Input{Node: "n1", Local: felixconfig.NewLocal([]string{environment}, "", "")}))
		if strings.Contains(got, "hunter2") || got != want {
			t.Errorf("%s: %q, want %q", environment, got, want)
		}
	}
}
