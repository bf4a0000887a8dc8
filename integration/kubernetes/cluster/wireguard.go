package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// encryptedSteps are those that encryption concerns: the kernel with WireGuard may be a slow one.
func encryptedSteps() []Step {
	return []Step{
		{"switch on two nodes: kubelets register, without a network", (*World).switchOn},
		{"install Manx: all nodes are Ready", (*World).installManx},
		{"start pods on all nodes: each has an address of its node's block", (*World).startPods},
		{"every pod reaches every other pod across nodes", (*World).podToPod},
		{"without WireGuard, the link between the nodes shows what pods say", (*World).readable},
		{"switch WireGuard on: the link shows nothing but encrypted packets", (*World).encrypt},
		{"a NetworkPolicy holds, and Manx names the rule that it is", (*World).networkPolicy},
		{"uninstall: Manx leaves nothing on the nodes", (*World).uninstall},
	}
}

// secret is in the requests of a pod, and in the answers.
const secret = "sixteen-secrets!"

const encryption = `
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {wireguardEnabled: true}
`

// capture is the traffic of pods and of WireGuard on the link of node1.
type capture struct {
	lines    string // as tcpdump prints them
	readable bool   // the secret is in it
}

var (
	sealed = regexp.MustCompile(`(?m)^IP .*\.51820 > .*\.51820: UDP.*$`)
	plain  = regexp.MustCompile(`(?m)^IP 10\.244\..*$`)
)

// listen captures on the link of node1 while pod client sends the secret to the web server of node2.
func (w *World) listen() (capture, error) {
	node := w.Worker("node1")
	file := filepath.Join(node.Dir, "link.pcap")
	errFile := filepath.Join(node.Dir, "tcpdump.log")
	if err := os.RemoveAll(errFile); err != nil {
		return capture{}, err
	}
	dump, err := w.Start("tcpdump", node.Dir, netns.Command(node.Namespace, "tcpdump", "-Z", "root", "-U", "-n",
		"-i", "eth0", "-w", file, "net", lab.PodCIDR, "or", "udp", "port", "51820"))
	if err != nil {
		return capture{}, err
	}
	defer dump.Kill()
	if err := eventually(func() error {
		if log, _ := os.ReadFile(errFile); !bytes.Contains(log, []byte("listening on")) {
			return fmt.Errorf("tcpdump does not listen: %s", log)
		}
		return nil
	}); err != nil {
		return capture{}, err
	}
	if err := w.tellSecret(); err != nil {
		return capture{}, err
	}
	time.Sleep(time.Second) // packets are written meanwhile
	if err := dump.Signal(syscall.SIGINT); err != nil {
		return capture{}, err
	}
	<-dump.Done()
	packets, err := os.ReadFile(file)
	if err != nil {
		return capture{}, err
	}
	lines, err := node.RunIn("tcpdump", "-n", "-t", "-r", file)
	return capture{lines, bytes.Contains(packets, []byte(secret))}, err
}

// tellSecret has the web server of node2 repeat the secret to pod client on node1.
func (w *World) tellSecret() error {
	pods, err := w.podsOf("-l", "app=web")
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.node != "node2" {
			continue
		}
		// Not wget: that of a static busybox ends where it looks a port up.
		request := fmt.Sprintf(`printf 'GET /echo?msg=%s HTTP/1.0\r\n\r\n' | nc %s 8080`, secret, p.ip)
		return eventually(func() error {
			out, err := w.Kubectl("exec", "client", "--", "sh", "-c", request)
			if err == nil && !strings.HasSuffix(out, secret) {
				err = fmt.Errorf("the web server of node2 answers %q", out)
			}
			return err
		})
	}
	return errors.New("no web server on node2")
}

// readable shows that the capture would find the secret.
func (w *World) readable() error {
	got, err := w.listen()
	if err == nil && (!got.readable || !plain.MatchString(got.lines)) {
		err = fmt.Errorf("the link shows no packet with the secret:\n%s", got.lines)
	}
	if err == nil {
		w.show("tcpdump -i eth0 on node1, while pod client asks the web server of node2 for "+secret,
			begin(got.lines)+"\nThe text is in these packets.")
	}
	return err
}

// encrypt switches WireGuard on by the one object that users apply.
func (w *World) encrypt() error {
	w.show("kubectl apply -f -", strings.TrimSpace(encryption))
	if err := w.install.Store(w.Cluster, encryption); err != nil {
		return err
	}
	for _, n := range w.Workers {
		if err := w.showEncryption(n.Name); err != nil {
			return err
		}
	}
	got, err := w.listen()
	if err != nil {
		return err
	}
	if got.readable || plain.MatchString(got.lines) || !sealed.MatchString(got.lines) {
		return fmt.Errorf("the link shows the secret: %t, in these packets:\n%s", got.readable, got.lines)
	}
	w.show("tcpdump -i eth0 on node1, while pod client asks the web server of node2 again", begin(got.lines)+
		"\nThese are all: UDP port 51820, and the text is in none of them.")
	return nil
}

// showEncryption waits until a node encrypts, and prints what it says about that.
func (w *World) showEncryption(node string) error {
	var out string
	if err := eventually(func() (err error) {
		out, err = w.manxd(node, "/manxctl", "get", "hostobjects", "wireguard")
		if err == nil && !strings.Contains(out, "encrypted, handshake") {
			err = fmt.Errorf("%s does not encrypt yet:\n%s", node, out)
		}
		return err
	}); err != nil {
		return err
	}
	w.show("on "+node+": manxctl get hostobjects wireguard", out)
	status, err := w.manxd(node, "/manxctl", "status")
	w.show("on "+node+": manxctl status", status)
	return err
}

// begin is the begin of a long text.
func begin(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if more := len(lines) - 8; more > 0 {
		lines = append(lines[:8], fmt.Sprintf("... and %d more", more))
	}
	return strings.Join(lines, "\n")
}
