package codec

import (
	"reflect"
	"testing"

	"github.com/manxnet/manx/datastore/document"
)

// The object that calicoctl 3.32 stored for this document, without its identity.
func TestKubeControllersDefaultsAreThoseOfCalico(t *testing.T) {
	objects, err := document.Parse([]byte(`
apiVersion: projectcalico.org/v3
kind: KubeControllersConfiguration
metadata: {name: default}
spec:
  logSeverityScreen: Info
  etcdV3CompactionPeriod: 10m
  controllers:
    node: {reconcilerPeriod: 5m, syncLabels: Enabled, hostEndpoint: {autoCreate: Disabled}}
    policy: {reconcilerPeriod: 5m}
`))
	if err != nil {
		t.Fatal(err)
	}
	o := objects[0]
	if err := PrepareCreate(o, testTime); err != nil {
		t.Fatal(err)
	}
	b, err := Encode(o)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := comparable(t, string(b))
	want, _ := comparable(t,
		`{"kind":"KubeControllersConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},"spec":{"logSeverityScreen":"Info","healthChecks":"Enabled","etcdV3CompactionPeriod":"10m0s","prometheusMetricsPort":9094,"controllers":{"node":{"reconcilerPeriod":"5m0s","syncLabels":"Enabled","hostEndpoint":{"autoCreate":"Disabled"},"leakGracePeriod":"15m0s"},"policy":{"reconcilerPeriod":"5m0s"}}},"status":{}}`)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("made %s", b)
	}
}
