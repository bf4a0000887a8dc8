package awscheck

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
	"github.com/manxnet/manx/retry"
)

// double plays the metadata service of an instance, and EC2's API, at two addresses.
type double struct {
	*testing.T
	metadata, api *httptest.Server
	answer        atomic.Pointer[http.HandlerFunc] // of the API, after its check of the request
	without       atomic.Pointer[string]           // part of the path of metadata that is not there
	asked         atomic.Int64                     // requests to the metadata service
	last          atomic.Pointer[url.Values]       // the last request to the API
}

func newDouble(t *testing.T) *double {
	d := &double{T: t}
	d.lack("nothing")
	d.metadata = httptest.NewServer(http.HandlerFunc(d.serveMetadata))
	d.api = httptest.NewServer(http.HandlerFunc(d.serveAPI))
	t.Cleanup(d.metadata.Close)
	t.Cleanup(d.api.Close)
	return d
}

func (d *double) lack(path string) { d.without.Store(&path) }

func (d *double) answers(h http.HandlerFunc) { d.answer.Store(&h) }

const region, token, session = "eu-central-1", "the-token", "the-session"

func (d *double) serveMetadata(w http.ResponseWriter, r *http.Request) {
	d.asked.Add(1)
	items := map[string]string{
		"mac": "02:00:00:00:00:01", "network/interfaces/macs/02:00:00:00:00:01/interface-id": "eni-0123456789abcdef0",
		"placement/region": region, "iam/security-credentials/": "nodes",
		"iam/security-credentials/nodes": `{"Code":"Success","AccessKeyId":"AKID","SecretAccessKey":"secret",` +
			`"Token":"` + session + `","Expiration":"` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"}`}
	item, known := items[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
		fmt.Fprint(w, token)
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
		http.Error(w, "no token", http.StatusUnauthorized)
	case !known, strings.Contains(r.URL.Path, *d.without.Load()):
		http.NotFound(w, r)
	default:
		fmt.Fprint(w, item)
	}
}

var signature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=AKID/[0-9]{8}/` + region + `/ec2/aws4_request, ` +
	`SignedHeaders=content-length;content-type;host;x-amz-date;x-amz-security-token, Signature=[0-9a-f]{64}$`)

func (d *double) serveAPI(w http.ResponseWriter, r *http.Request) {
	if s := r.Header.Get("Authorization"); !signature.MatchString(s) || r.Method != http.MethodPost ||
		r.Header.Get("X-Amz-Security-Token") != session || r.ParseForm() != nil {
		d.Errorf("request %s %s, %q", r.Method, r.URL, r.Header)
	}
	d.last.Store(&r.PostForm)
	(*d.answer.Load())(w, r)
}

func (d *double) ec2() *ec2 {
	return newEC2At(d.metadata.URL, func(r string) (string, error) {
		if r != region {
			return "", fmt.Errorf("region %s", r)
		}
		return d.api.URL, nil
	}, func() *http.Client { return client(nil, nil) })
}

func success(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `<ModifyNetworkInterfaceAttributeResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">`+
		`<requestId>1</requestId><return>true</return></ModifyNetworkInterfaceAttributeResponse>`)
}

func unauthorized(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprint(w, "<?xml version=\"1.0\"?><Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>You are "+
		"not\nauthorized. Encoded: "+strings.Repeat("x", 1000)+"</Message></Error></Errors></Response>")
}

// rig has the part in a daemon of its own, with a datastore whose FelixConfiguration a test changes.
type rig struct {
	*double
	tables   *datastore.Tables
	control  *server.Server
	revision int64
}

func newRig(t *testing.T, environ ...string) *rig {
	r := &rig{double: newDouble(t), tables: datastore.NewTables(zap.NewNop(), "n1"),
		control: server.New(server.Config{Node: "n1", Log: zap.NewNop()})}
	p := New(deps.Deps{Tables: r.tables, Log: zap.NewNop(),
		Node: deps.Node{Name: "n1", Felix: felixconfig.NewLocal(environ, "", "")}})
	p.instance, p.patience = r.ec2(), 5*time.Second
	p.backoff = retry.Backoff{Min: 5 * time.Millisecond, Max: 5 * time.Millisecond}
	group := part.NewGroup(zap.NewNop(), p)
	group.Show(r.control)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) set(o v3.AWSSrcDstCheckOption) {
	f := &model.FelixConfiguration{}
	f.Name, f.Spec.AWSSrcDstCheck = "default", &o
	r.revision++
	object := model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), f)
	object.Revision = r.revision
	r.tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: object.Key, Object: object, Revision: r.revision},
		datastore.Event{Type: datastore.EventInSync, Revision: r.revision})
}

// notice waits until the one notice has all these texts; none: until there is none.
func (r *rig) notice(texts ...string) {
	r.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list := r.control.Notices()
		fits := len(list) == min(1, len(texts))
		for _, text := range texts {
			fits = fits && strings.Contains(list[0].Subject+": "+list[0].Text, text)
		}
		if fits {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("notices %+v, want %q", list, texts)
		}
	}
}

// changed waits until EC2 was asked to switch the check.
func (r *rig) changed(value string) {
	r.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		form := r.last.Load()
		if form != nil && form.Get("SourceDestCheck.Value") == value && form.Get("Version") == "2016-11-15" &&
			form.Get("Action") == "ModifyNetworkInterfaceAttribute" &&
			form.Get("NetworkInterfaceId") == "eni-0123456789abcdef0" {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("the last request was %v, want SourceDestCheck.Value=%s", form, value)
		}
	}
}

// The check follows the setting. A failure is a notice with its cause and its remedy, and is tried again.
func TestTheCheckFollowsTheSetting(t *testing.T) {
	r := newRig(t)
	r.answers(unauthorized)
	r.set(v3.AWSSrcDstCheckOptionDoNothing)
	r.set(v3.AWSSrcDstCheckOptionDisable)
	r.notice("awsSrcDstCheck: EC2 refuses to change eni-0123456789abcdef0: UnauthorizedOperation: You are not",
		"xxx...; the role of the instance needs the permission ec2:ModifyNetworkInterfaceAttribute")
	r.changed("false")
	r.answers(success)
	r.notice()
	r.set(v3.AWSSrcDstCheckOptionEnable)
	r.changed("true")

	r.lack("security-credentials")
	r.set(v3.AWSSrcDstCheckOptionDisable)
	r.notice("the instance has no credentials", "give it a role that allows ec2:ModifyNetworkInterfaceAttribute")
	r.lack("placement")
	r.notice("the metadata service of EC2 does not answer",
		"if this host is no instance of EC2, set awsSrcDstCheck to DoNothing")
	r.set(v3.AWSSrcDstCheckOptionDoNothing)
	r.notice()
	asked := r.asked.Load()
	r.metadata.Close()
	r.set(v3.AWSSrcDstCheckOptionEnable)
	r.notice("connection refused", "if this host is no instance of EC2")
	if r.asked.Load() != asked {
		t.Error("with DoNothing the metadata service was asked")
	}
}

// FELIX_AWSSRCDSTCHECK comes before FelixConfiguration.
func TestTheEnvironmentCountsFirst(t *testing.T) {
	r := newRig(t, "FELIX_AWSSRCDSTCHECK=Disable")
	r.answers(success)
	r.set(v3.AWSSrcDstCheckOptionEnable)
	r.changed("false")
}

// An API that takes the connection and does not answer ends an attempt, and no longer than that.
func TestAHangingConnection(t *testing.T) {
	d := newDouble(t)
	release := make(chan struct{})
	defer close(release)
	d.answers(func(http.ResponseWriter, *http.Request) { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := d.ec2().SetSourceDestCheck(ctx, false)
	const want = "EC2 does not answer (it takes too long): this host has to reach 127."
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// Answers that are no success are errors, also long ones; none leads to another place, which would get the credentials.
func TestOddAnswers(t *testing.T) {
	trap := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a request to elsewhere: %s %q", r.URL, r.Header)
	}))
	defer trap.Close()
	d := newDouble(t)
	e := d.ec2()
	for name, answer := range map[string]http.HandlerFunc{
		"redirection": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, trap.URL, http.StatusTemporaryRedirect)
		},
		"empty":      func(http.ResponseWriter, *http.Request) {},
		"no success": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<r><return>false</return></r>") },
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			for text := strings.Repeat("<r>", 10_000); ; {
				if _, err := fmt.Fprint(w, text); err != nil {
					return
				}
			}
		},
	} {
		d.answers(answer)
		if err := e.SetSourceDestCheck(t.Context(), true); err == nil || len(err.Error()) > 400 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A proxy of the environment gets no request for the metadata service: it would read the credentials.
func TestNoProxyForMetadata(t *testing.T) {
	trap := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the proxy got %s", r.URL)
	}))
	defer trap.Close()
	t.Setenv("HTTP_PROXY", trap.URL)
	t.Setenv("http_proxy", trap.URL)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", trap.URL)
	e := newEC2()
	e.metadata = newEC2At("http://192.0.2.1", nil, nil).metadata // an address of no host, which a proxy would take
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := e.SetSourceDestCheck(ctx, true); err == nil {
		t.Error("192.0.2.1 has answered")
	}
}

// The region alone decides where EC2's API is.
func TestEndpoint(t *testing.T) {
	for region, want := range map[string]string{
		"eu-central-1":  "https://ec2.eu-central-1.amazonaws.com/",
		"us-gov-west-1": "https://ec2.us-gov-west-1.amazonaws.com/",
		"cn-north-1":    "https://ec2.cn-north-1.amazonaws.com.cn/",
		"us-iso-east-1": "", "": "", "evil.example/": "", "eu-1.evil.example/#-1": "",
		"eu-central-1\n": "", "eu-central-1.evil": "",
	} {
		if got, err := endpointOf(region); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v, want %q", region, got, err, want)
		}
	}
}

// A host without authorities, as the image is, knows those of Mozilla; one with some has no others.
func TestAuthorities(t *testing.T) {
	none := x509.NewCertPool()
	all := authorities(nil)
	if all.Equal(none) || !authorities(none).Equal(all) || authorities(all) != all {
		t.Error("wrong authorities")
	}
}
