package felixconfig

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// Every field of FelixConfiguration has its parameter, but for the selector, which is no setting.
func TestEveryFieldHasItsParameter(t *testing.T) {
	fields := map[string]bool{}
	for _, p := range Parameters() {
		if fields[p.Field] && p.Field != "" {
			t.Errorf("two parameters set %s", p.Field)
		}
		fields[p.Field] = true
	}
	eachField(reflect.TypeFor[model.FelixConfigurationSpec](), nil, func(f reflect.StructField) {
		if name := jsonName(f); !fields[name] && name != "nodeSelector" {
			t.Errorf("no parameter sets %s", name)
		}
	})
	if n := len(Parameters()); n < 218 {
		t.Errorf("only %d parameters", n)
	}
}

// A default of Felix is a value that is read without an error, or of a type that is not read.
func TestDefaultsAreRead(t *testing.T) {
	for _, p := range Parameters() {
		if p.Default != "" {
			for _, v := range NewLocal([]string{p.Variable() + "=" + p.Default}, "", "").Values {
				if v.Err != nil {
					t.Errorf("%s = %q: %v", v.Source, v.Text, v.Err)
				}
			}
		}
	}
}

// always removes the field that JSON has even without a value.
var always = strings.NewReplacer(`,"bpfLogLevel":""`, "", `"bpfLogLevel":"",`, "", `"bpfLogLevel":""`, "")

func TestParametersAreReadAsFelixDoes(t *testing.T) {
	for _, c := range []struct{ variable, want string }{
		{"FELIX_IPINIPENABLED=yes", `{"ipipEnabled":true}`},
		{"FELIX_IpInIpMtu=0x5a0", `{"ipipMTU":1440}`},
		{"felix_bpfenabled=F", `{"bpfEnabled":false}`},
		{"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", `{"defaultEndpointToHostAction":"Accept"}`},
		{"FELIX_LOGSEVERITYSCREEN=warning", `{"logSeverityScreen":"Warning"}`},
		{"FELIX_WORKLOADSOURCESPOOFING=any", `{"workloadSourceSpoofing":"Any"}`},
		{"FELIX_NATOUTGOINGEXCLUSIONS=ippoolsandhostips", `{"natOutgoingExclusions":"IPPoolsAndHostIPs"}`},
		{"FELIX_NATPORTRANGE=32768:65535", `{"natPortRange":"32768:65535"}`},
		{"FELIX_ROUTEREFRESHINTERVAL=1.5", `{"routeRefreshInterval":"1.5s"}`},
		{"FELIX_IPTABLESLOCKPROBEINTERVALMILLIS=50", `{"iptablesLockProbeInterval":"50ms"}`},
		{"FELIX_EXTERNALNODESCIDRLIST=192.0.2.1,2001:db8::/64", `{"externalNodesList":["192.0.2.1","2001:db8::/64"]}`},
		{"FELIX_FAILSAFEINBOUNDHOSTPORTS=22,udp:68, tcp:10.0.0.0/8:80,tcp:[2001:db8::/32]:443",
			`{"failsafeInboundHostPorts":[{"protocol":"tcp","port":22},{"protocol":"udp","port":68},` +
				`{"protocol":"tcp","port":80,"net":"10.0.0.0/8"},{"protocol":"tcp","port":443,"net":"2001:db8::/32"}]}`},
		{"FELIX_FAILSAFEINBOUNDHOSTPORTS=none", `{"failsafeInboundHostPorts":null}`},
		{"FELIX_ENDPOINTSTATUSPATHPREFIX=none", `{"endpointStatusPathPrefix":"none"}`},
		{"FELIX_IPTABLESMARKMASK=0xff000000", `{"iptablesMarkMask":4278190080}`},
		{"FELIX_INTERFACEPREFIX=", `{}`},
		{"FELIX_ROUTETABLERANGES=1-250", `{}`}, // of a type that nothing here reads
		{"FELIX_NOSUCHTHING=1", `{}`},
		{"CALICO_IPINIPENABLED=1", `{}`},
	} {
		l := NewLocal([]string{c.variable}, "", "")
		raw, err := json.Marshal(l.Spec)
		got := always.Replace(string(raw))
		if got != c.want || err != nil || len(l.Values) > 0 && l.Values[0].Err != nil {
			t.Errorf("%s: %s, want %s, %v %v", c.variable, got, c.want, err, l.Values)
		}
	}
}

// A value that breaks a rule changes nothing, and the rule is reported.
func TestWrongValuesOfParameters(t *testing.T) {
	for _, c := range []struct{ variable, rule string }{
		{"FELIX_IPINIPENABLED=maybe", "want true or false"},
		{"FELIX_IPINIPMTU=big", "want a number"},
		{"FELIX_INTERFACEPREFIX=cali/bad", "must be beginnings of interfaces' names"},
		{"FELIX_INTERFACEPREFIX=abcdefghijklmnopqrstuvwxyza", "must be beginnings of interfaces' names"},
		{"FELIX_LOGACTIONRATELIMITBURST=10000", "want a number from 0 to 9999"},
		{"FELIX_IPV4NORMALROUTEPRIORITY=0", "want a number from 1 to 2147483646"},
		{"FELIX_SERVICELOOPPREVENTION=Sometimes", "want Drop, Reject, Disabled"},
		{"FELIX_NATOUTGOINGADDRESS=2001:db8::1", "want an address of IPv4"},
		{"FELIX_NATPORTRANGE=http", "want a port or a range of ports FIRST:LAST"},
		{"FELIX_EXTERNALNODESCIDRLIST=here", "want prefixes or addresses, separated by commas"},
		{"FELIX_FAILSAFEOUTBOUNDHOSTPORTS=sctp:1", "want ports PORT"},
		{"FELIX_MTUIFACEPATTERN=(", "must be a regular expression"},
		{"FELIX_LOGACTIONRATELIMIT=fast", "must be NUMBER/second"},
		{"FELIX_ROUTEREFRESHINTERVAL=1m", "want a number of seconds"},
	} {
		l := NewLocal([]string{c.variable}, "", "")
		if len(l.Values) != 1 || l.Values[0].Err == nil || !strings.Contains(l.Values[0].Err.Error(), c.rule) ||
			!reflect.DeepEqual(l.Spec, model.FelixConfigurationSpec{}) {
			t.Errorf("%s: %v", c.variable, l.Values)
		}
	}
}

const file = `# a comment
[global]
LogPrefix = "of the file" # why
InterfacePrefix: tap
bpfenabled = true
nonsense
[other]
IpInIpEnabled = no
`

// Each source comes before the ones below it: environment, felix.cfg, node.NAME, the selecting object, default.
func TestPrecedenceOfSources(t *testing.T) {
	yes := true
	var spec model.FelixConfigurationSpec
	spec.IPIPEnabled, spec.InterfacePrefix, spec.LogPrefix = &yes, "cali", "stored"
	spec.DeviceRouteSourceAddress = "192.0.2.1"
	r := model.NewSet(felix("default", spec), felix("node.n1", spec))
	l := NewLocal([]string{"FELIX_INTERFACEPREFIX=veth", "FELIX_DEVICEROUTESOURCEADDRESS=none", "FELIX_FOO=1"},
		"/etc/calico/felix.cfg", file)
	got := Merge(r, "n1", l)
	if *got.IPIPEnabled || got.InterfacePrefix != "veth" || got.LogPrefix != "of the file" || !*got.BPFEnabled ||
		got.DeviceRouteSourceAddress != "" {
		t.Errorf("got %v %s %s %s", *got.IPIPEnabled, got.InterfacePrefix, got.LogPrefix,
			got.DeviceRouteSourceAddress)
	}
	var sources []string
	for _, v := range l.Values {
		sources = append(sources, fmt.Sprint(v.Source, " ", v.Parameter.kind != ""))
	}
	slices.Sort(sources)
	want := []string{"FELIX_DEVICEROUTESOURCEADDRESS in the environment true", "FELIX_FOO in the environment false",
		"FELIX_INTERFACEPREFIX in the environment true", "IpInIpEnabled in /etc/calico/felix.cfg true",
		"LogPrefix in /etc/calico/felix.cfg true", "bpfenabled in /etc/calico/felix.cfg true"}
	if !slices.Equal(sources, want) {
		t.Errorf("sources: %q", sources)
	}
	if !slices.Equal(l.Problems, []string{"/etc/calico/felix.cfg, line 6: want KEY = VALUE"}) {
		t.Errorf("problems: %q", l.Problems)
	}
	if got = Merge(r, "n1", nil); got.InterfacePrefix != "cali" || got.LogPrefix != "stored" {
		t.Errorf("of objects alone: %+v", got)
	}
}
