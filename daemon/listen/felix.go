package listen

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// felixListeners serve metrics, health and profiles where the settings of Felix want them, and as long as they do.
// --http-listen serves the first two in any case.
type felixListeners struct {
	deps.Deps
	http string // the address of --http-listen

	mu   sync.Mutex // guards open, which Run alone changes
	open map[felixListener]*openListener
}

// felixListener is a listener that settings want.
type felixListener struct {
	setting, address          string
	withoutGo, withoutProcess bool // metrics of Go's runtime, and of the process
	tls                       tlsFiles
}

// openListener is a running listener, or one that waits for its port or its files.
type openListener struct {
	*part.Group
	end func()
}

// The settings that want a listener.
const (
	metricsSetting = "prometheusMetricsEnabled"
	healthSetting  = "healthEnabled"
	debugSetting   = "debugPort"
)

// NewFelix returns the part for the listeners that the settings of Felix want beside --http-listen, whose address is
// given: empty for none.
func NewFelix(d deps.Deps, http string) part.Part {
	return &felixListeners{Deps: d, http: http, open: map[felixListener]*openListener{}}
}

func (f *felixListeners) Name() string { return "felix-listeners" }

// Notices implements server.Noticer.
func (f *felixListeners) Notices() (list []server.Notice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.open {
		list = append(list, l.Notices()...)
	}
	slices.SortFunc(list, func(a, b server.Notice) int { return strings.Compare(a.Subject, b.Subject) })
	return list
}

// Run implements part.Part.
func (f *felixListeners) Run(ctx context.Context) error {
	defer f.follow(ctx, nil)
	for {
		snapshot := f.Tables.Snapshot()
		merged := felixconfig.Merge(snapshot, f.Node.Name, f.Node.Felix)
		f.follow(ctx, wantedListeners(&merged, f.http))
		if _, err := f.Tables.Wait(ctx, snapshot); err != nil {
			return nil
		}
	}
}

// follow ends the listeners that are not wanted any more, then begins new ones, which may have the port of one before.
func (f *felixListeners) follow(ctx context.Context, wanted []felixListener) {
	for l, running := range maps.Clone(f.open) {
		if !slices.Contains(wanted, l) {
			running.end()
			f.set(l, nil)
		}
	}
	for _, l := range wanted {
		if f.open[l] == nil {
			f.set(l, f.start(ctx, l))
		}
	}
}

// set records a listener; nil: it has ended.
func (f *felixListeners) set(l felixListener, running *openListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[l] = running; running == nil {
		delete(f.open, l)
	}
}

func (f *felixListeners) start(ctx context.Context, l felixListener) *openListener {
	f.Log.Info("settings of Felix want a listener", zap.String("setting", l.setting), zap.String("address", l.address))
	ctx, cancel := context.WithCancel(ctx)
	group, done := part.NewGroup(f.Log, f.port(l)), make(chan struct{})
	go func() {
		defer close(done)
		_ = group.Run(ctx) // no error of a port is permanent
	}()
	return &openListener{Group: group, end: func() {
		cancel()
		<-done
	}}
}

// port returns the part for a listener.
func (f *felixListeners) port(l felixListener) *Port {
	serve := f.Control.ServeHealth
	switch l.setting {
	case debugSetting:
		serve = f.Control.ServeProfiles
	case metricsSetting:
		serve = func(ctx context.Context, listener net.Listener) error {
			return f.Control.ServeFelixMetrics(ctx, listener, l.without()...)
		}
	}
	if l.tls.wanted() {
		serve = l.tls.over(serve)
	}
	return &Port{name: l.setting + " at " + l.address, address: l.address, serve: serve, Ready: func() error {
		if samePort(f.http, l.address) {
			return fmt.Errorf("--http-listen=%s has that port; set MANX_HTTP_LISTEN=%s, or another port here", f.http,
				l.address)
		}
		if l.tls.wanted() {
			_, err := l.tls.config()
			return err
		}
		return nil
	}}
}

// without returns the prefixes of the metrics that are switched off.
func (l felixListener) without() (prefixes []string) {
	if l.withoutGo {
		prefixes = append(prefixes, "go_")
	}
	if l.withoutProcess {
		prefixes = append(prefixes, "process_")
	}
	return prefixes
}

// wantedListeners returns the listeners that the settings of Felix want beside --http-listen. Health has none of its
// own while its address is not set, or is served by --http-listen.
func wantedListeners(s *model.FelixConfigurationSpec, http string) (list []felixListener) {
	if valueOr(s.PrometheusMetricsEnabled, false) {
		list = append(list, felixListener{setting: metricsSetting,
			address:        hostPort(s.PrometheusMetricsHost, valueOr(s.PrometheusMetricsPort, 9091)),
			withoutGo:      !valueOr(s.PrometheusGoMetricsEnabled, true),
			withoutProcess: !valueOr(s.PrometheusProcessMetricsEnabled, true),
			tls: tlsFiles{cert: valueOr(s.PrometheusMetricsCertFile, ""), key: valueOr(s.PrometheusMetricsKeyFile, ""),
				ca:         valueOr(s.PrometheusMetricsCAFile, ""),
				clientAuth: valueOr(s.PrometheusMetricsClientAuth, "")}})
	}
	host, port := valueOr(s.HealthHost, ""), valueOr(s.HealthPort, 9099)
	if valueOr(s.HealthEnabled, false) && (host != "" || s.HealthPort != nil) {
		if host == "" {
			host = "localhost"
		}
		if address := hostPort(host, port); !covers(http, address) {
			list = append(list, felixListener{setting: healthSetting, address: address})
		}
	}
	if port := valueOr(s.DebugPort, 0); port != 0 {
		list = append(list, felixListener{setting: debugSetting,
			address: hostPort(cmp.Or(valueOr(s.DebugHost, ""), "localhost"), port)})
	}
	return list
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// covers reports whether a listener at an address, empty for none, answers at another one, too.
func covers(listener, address string) bool {
	host, port, err := net.SplitHostPort(listener)
	otherHost, otherPort, _ := net.SplitHostPort(address)
	if err != nil || port != otherPort {
		return false
	}
	switch host {
	case "", "::":
		return true
	case "0.0.0.0":
		return !strings.Contains(otherHost, ":")
	}
	return strings.Replace(host, "localhost", "127.0.0.1", 1) == strings.Replace(otherHost, "localhost", "127.0.0.1", 1)
}

// samePort reports whether the kernel refuses one of two addresses because of the other one.
func samePort(a, b string) bool { return covers(a, b) || covers(b, a) }

// tlsFiles are the settings of a listener for HTTPS.
type tlsFiles struct{ cert, key, ca, clientAuth string }

// wanted reports whether the connections are encrypted: also with settings that are not complete, which serve nothing.
func (t tlsFiles) wanted() bool {
	return t.cert != "" || t.key != "" || t.ca != "" ||
		t.clientAuth != "" && !strings.EqualFold(t.clientAuth, tls.NoClientCert.String())
}

// config reads the files.
func (t tlsFiles) config() (*tls.Config, error) {
	if t.cert == "" || t.key == "" {
		return nil, errors.New("TLS needs prometheusMetricsCertFile and prometheusMetricsKeyFile")
	}
	cert, err := readRegular(t.cert)
	key, keyErr := readRegular(t.key)
	if err := errors.Join(err, keyErr); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%w (%s, %s)", err, t.cert, t.key)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.ClientAuth, err = t.auth(); err != nil {
		return nil, err
	}
	if t.ca == "" {
		if c.ClientAuth >= tls.VerifyClientCertIfGiven { // else the system's authorities would count
			return nil, fmt.Errorf("prometheusMetricsClientAuth %s needs prometheusMetricsCAFile", c.ClientAuth)
		}
		return c, nil
	}
	text, err := readRegular(t.ca)
	if err != nil {
		return nil, err
	}
	if c.ClientCAs = x509.NewCertPool(); !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", t.ca)
	}
	return c, nil
}

// longestPEM is more than any file of certificates needs.
const longestPEM = 1 << 20

// readRegular reads a file whose path comes from the datastore: a device or a pipe must not keep the daemon busy.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > longestPEM) {
		err = fmt.Errorf("%s is no file of at most %d bytes", path, longestPEM)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// auth returns what clients have to show.
func (t tlsFiles) auth() (tls.ClientAuthType, error) {
	if t.clientAuth == "" {
		return tls.NoClientCert, nil
	}
	for a := tls.NoClientCert; a <= tls.RequireAndVerifyClientCert; a++ {
		if strings.EqualFold(a.String(), t.clientAuth) {
			return a, nil
		}
	}
	return 0, fmt.Errorf("prometheusMetricsClientAuth %q is not known", t.clientAuth)
}

// over has a function serve HTTPS. The files are read for each connection; with bad ones it ends with their error.
func (t tlsFiles) over(serve func(context.Context, net.Listener) error) func(context.Context, net.Listener) error {
	return func(ctx context.Context, l net.Listener) error {
		serving, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		err := serve(serving, tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				c, err := t.config()
				if err != nil {
					fail(err)
				}
				return c, err
			}}))
		if err == nil && ctx.Err() == nil {
			err = context.Cause(serving)
		}
		return err
	}
}
