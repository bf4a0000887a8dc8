package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/safefile"
)

// Configurations of other programs' plugins, with keys and numbers that Manx does not know.
const (
	istios   = `{"type":"istio-cni","log_level":"info","ambient_enabled":false,"exclude_namespaces":["kube-system"]}`
	linkerds = `{"type":"linkerd-cni","policy":{"type":"k8s","a<b":"&"},"linkerd":{"ports-to-redirect":[],` +
		`"proxy-uid":2102,"odd":12345678901234567890},"name":"linkerd-cni"}`
	tunings = `{"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}}`
)

// calicos is the list that calico-node writes, with a plugin that Istio has chained.
const calicos = `{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[
 {"type":"calico","log_level":"info","mtu":1410,"ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"}},
 {"type":"portmap","snat":true,"capabilities":{"portMappings":true}},
 {"type":"bandwidth","capabilities":{"bandwidth":true}},
 ` + istios + `]}`

// manxs returns Manx's list.
func manxs(t *testing.T, mtu int) []byte {
	t.Helper()
	content, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(mtu))
	must(t, err)
	content, err = RequirePolicy(content, true)
	must(t, err)
	return content
}

// chainLikeIstio is the edit of Istio's installer: it decodes the whole list, appends its plugin anew, and writes the
// list in its own format, by a rename.
func chainLikeIstio(path, plugin string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var list, own map[string]any
	if err := json.Unmarshal([]byte(plugin), &own); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	plugins := slices.DeleteFunc(list["plugins"].([]any), func(p any) bool {
		return p.(map[string]any)["type"] == own["type"]
	})
	list["plugins"] = append(plugins, own)
	if text, err = json.MarshalIndent(list, "", "    "); err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "istio-tmp")
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// jq edits a file as the scripts of Linkerd do.
func jq(t *testing.T, path, filter string) {
	t.Helper()
	out, err := exec.Command("jq", filter, path).Output()
	if err != nil {
		t.Fatalf("jq %s: %v", filter, err)
	}
	write(t, path+".new", string(out), 0o600)
	must(t, os.Rename(path+".new", path))
}

// pluginsOf returns the plugins of a list by their types, with the MTU or the compacted text of others' plugins.
func pluginsOf(t *testing.T, path string) string {
	t.Helper()
	l, err := parseList([]byte(read(t, path)))
	must(t, err)
	var all []string
	for _, p := range l.plugins {
		switch {
		case p.network():
			all = append(all, fmt.Sprint(p.kind(), p.value["mtu"]))
		case p.kind() == "portmap":
			all = append(all, p.kind())
		default:
			var short bytes.Buffer
			must(t, json.Compact(&short, p.text))
			all = append(all, short.String())
		}
	}
	return strings.Join(all, " ")
}

func compact(t *testing.T, text string) string {
	t.Helper()
	var short bytes.Buffer
	must(t, json.Compact(&short, []byte(text)))
	return short.String()
}

func TestPluginsOfOthersStayInTheList(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip(err)
	}
	f := Folder{t.TempDir()}
	path, multus := filepath.Join(f.Dir, listName), filepath.Join(f.Dir, "00-multus.conf")
	write(t, multus, `{"type":"multus","plugins":"odd"}`, 0o600)
	must(t, f.put(manxs(t, 1)))
	must(t, chainLikeIstio(path, istios))
	jq(t, path, ".disableCheck = true | .plugins += ["+linkerds+"]")
	jq(t, path, ".plugins |= [.[0], "+tunings+"] + .[1:]")
	edited := read(t, path)
	l, err := parseList([]byte(edited))
	must(t, err)
	linkerd := compact(t, string(l.plugins[len(l.plugins)-1].text)) // jq may round numbers
	istio := compact(t, string(l.plugins[3].text))

	written, others, err := f.writeConflist(listName, "", manxs(t, 1))
	must(t, err)
	if read(t, path) != edited || written || fmt.Sprint(others) != "[tuning istio-cni linkerd-cni]" {
		t.Errorf("a list with all that it should have was written, with %v: %s", others, read(t, path))
	}
	want := "calico1002 " + compact(t, tunings) + " portmap " + istio + " " + linkerd
	must(t, f.put(manxs(t, 2)))
	if have := pluginsOf(t, path); have != want || !strings.Contains(read(t, path), `"disableCheck": true`) {
		t.Errorf("a new MTU gives\n%s\nwant\n%s", have, want)
	}
	// Another template: Manx's portmap goes, its sbr comes, and a tuning of its own is another than that of others.
	template := strings.Replace(DefaultTemplate(true, Families{V4: true}), `{"type": "portmap", "snat": true, `+
		`"capabilities": {"portMappings": true}}`, `{"type":"sbr"},{"type":"tuning","mtu":1400}`, 1)
	content, err := Conflist(template, values(3))
	must(t, err)
	for range 2 {
		must(t, f.put(content))
		want = "calico1003 " + compact(t, tunings) + ` {"type":"sbr"} {"type":"tuning","mtu":1400} ` + istio + " " + linkerd
		if have := pluginsOf(t, path); have != want {
			t.Errorf("another template gives\n%s\nwant\n%s", have, want)
		}
	}
	// The owner of a plugin removes it.
	jq(t, path, `del(.plugins[] | select(.type == "linkerd-cni"))`)
	must(t, f.put(manxs(t, 4)))
	if have := pluginsOf(t, path); strings.Contains(have, "linkerd") || !strings.Contains(have, "istio") {
		t.Errorf("after the removal of one: %s", have)
	}
	// A list that is no JSON stays, and is an error that names it; nothing is removed either.
	write(t, path, `{"name":`, 0o600)
	if err := f.put(manxs(t, 5)); err == nil || !strings.Contains(err.Error(), path+" is no network configuration") {
		t.Errorf("error is %v", err)
	}
	if _, err := f.Remove(); err == nil || read(t, path) != `{"name":` || !f.present(recordName) {
		t.Errorf("removal: %v, %s", err, read(t, path))
	}
	if read(t, multus) != `{"type":"multus","plugins":"odd"}` {
		t.Error("the file of Multus is changed")
	}
}

func TestRemovalGivesBackTheListFromBeforeWithThePluginsOfOthers(t *testing.T) {
	f := Folder{t.TempDir()}
	path, before := filepath.Join(f.Dir, listName), filepath.Join(f.Dir, listName+beforeSuffix)
	bandwidth := `{"type":"bandwidth","capabilities":{"bandwidth":true}}`
	takeOver := func() {
		t.Helper()
		write(t, path, calicos, 0o600)
		must(t, f.put(manxs(t, 1)))
		want := "calico1001 portmap " + bandwidth + " " + istios
		if have := pluginsOf(t, path); have != want {
			t.Errorf("Manx's list has\n%s\nwant\n%s", have, want)
		}
		must(t, chainLikeIstio(path, istios))
		must(t, chainLikeIstio(path, tunings))
		for mtu := range 3 { // restarts
			must(t, f.put(manxs(t, mtu)))
			if read(t, before) != calicos {
				t.Fatalf("the kept list is %s", read(t, before))
			}
		}
	}
	restored := func(want string) {
		t.Helper()
		did, err := f.Remove()
		must(t, err)
		if have := pluginsOf(t, path); have != want || len(did) != 1 || !strings.HasPrefix(did[0], "restored") {
			t.Errorf("%v: the list has\n%s\nwant\n%s", did, have, want)
		}
		if entries, err := os.ReadDir(f.Dir); err != nil || len(entries) != 1 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
	takeOver()
	restored(`calico1410 portmap ` + ordered(t, bandwidth) + " " + ordered(t, istios) + " " + ordered(t, tunings))

	// A plugin whose owner has removed it meanwhile does not come back, since its program may have gone.
	takeOver()
	text := read(t, path)
	l, err := parseList([]byte(text))
	must(t, err)
	l.plugins = slices.DeleteFunc(l.plugins, func(p plugged) bool { return p.kind() == "istio-cni" })
	edited, err := l.marshal()
	must(t, err)
	write(t, path, string(edited), 0o600)
	restored(`calico1410 portmap ` + ordered(t, bandwidth) + " " + ordered(t, tunings))

	// Without changes the file is the same to the byte, also if Manx's own list was removed by hand.
	for _, by := range []func(){func() {}, func() { must(t, os.Remove(path)) }} {
		write(t, path, calicos, 0o600)
		must(t, f.put(manxs(t, 1)))
		by()
		if _, err := f.Remove(); err != nil || read(t, path) != calicos {
			t.Errorf("%v: %s", err, read(t, path))
		}
	}
	// Without a list from before, the plugins of others go with Manx's list, which alone made interfaces.
	must(t, os.Remove(path))
	must(t, f.put(manxs(t, 1)))
	must(t, chainLikeIstio(path, istios))
	did, err := f.Remove()
	if must(t, err); f.present(listName) || len(did) != 1 || !strings.HasSuffix(did[0], "other programs: istio-cni") {
		t.Errorf("%v", did)
	}
}

// ordered returns a JSON object as Istio's installer writes it.
func ordered(t *testing.T, text string) string {
	t.Helper()
	var value any
	must(t, json.Unmarshal([]byte(text), &value))
	out, err := json.Marshal(value)
	must(t, err)
	return string(out)
}

// An older version replaced the kept list by one of its own as soon as another program had edited Manx's list, and its
// record has no plugins.
func TestListsOfOlderVersions(t *testing.T) {
	f := Folder{t.TempDir()}
	path, before := filepath.Join(f.Dir, listName), filepath.Join(f.Dir, listName+beforeSuffix)
	withoutPolicy, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(0))
	must(t, err)
	for _, old := range [][]byte{manxs(t, 0), withoutPolicy} {
		write(t, path, string(old), 0o600)
		must(t, chainLikeIstio(path, istios))
		edited := read(t, path)
		text, err := json.Marshal(map[string]any{"conflist": listName, "sha256": []string{sum(old)}})
		must(t, err)
		write(t, filepath.Join(f.Dir, recordName), string(text), 0o600)
		write(t, before, edited, 0o600)
		must(t, f.put(manxs(t, 1)))
		if have := pluginsOf(t, path); have != "calico1001 portmap "+ordered(t, istios) {
			t.Errorf("after the update the list has %s", have)
		}
		// calico-node comes back for a while: its list is kept now.
		write(t, path, calicos, 0o600)
		must(t, f.put(manxs(t, 2)))
		if read(t, before) != calicos {
			t.Errorf("the kept list is %s", read(t, before))
		}
		must(t, os.Remove(before))
		write(t, before, edited, 0o600)
		if did, err := f.Remove(); err != nil || f.present(listName) || !strings.HasPrefix(did[0], "removed") {
			t.Errorf("Manx's own list came back: %v, %v", did, err)
		}
		// Removal with an old record, while the older version's list is still there.
		write(t, path, edited, 0o600)
		write(t, filepath.Join(f.Dir, recordName), string(text), 0o600)
		write(t, before, calicos, 0o600)
		must(t, chainLikeIstio(path, tunings))
		_, err = f.Remove()
		if must(t, err); pluginsOf(t, path) != "calico1410 portmap "+ordered(t, istios)+" "+ordered(t, tunings) {
			t.Errorf("restored: %s", pluginsOf(t, path))
		}
	}
}

// The list of another network, and an earlier conflist of another name, give their chained plugins to Manx's.
func TestPluginsComeAlong(t *testing.T) {
	f := Folder{t.TempDir()}
	path, oldPath := filepath.Join(f.Dir, listName), filepath.Join(f.Dir, "05-old.conflist")
	flannels := `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap","old":true},` + istios + `]}`
	for _, at := range []string{path, oldPath} {
		write(t, at, flannels, 0o600)
		_, _, err := f.writeConflist(listName, "05-old.conflist", manxs(t, 1))
		must(t, err)
		if have := pluginsOf(t, path); have != "calico1001 portmap "+istios || strings.Contains(read(t, path), "old") {
			t.Errorf("the list is %s", read(t, path))
		}
		_, err = f.Remove()
		must(t, err)
		must(t, os.RemoveAll(path))
	}
}

// Another program edits the list at the same moments as Manx, which never takes an edit back.
func TestTwoWriters(t *testing.T) {
	f := Folder{t.TempDir()}
	path := filepath.Join(f.Dir, listName)
	must(t, f.put(manxs(t, 0)))
	edit := func(n int) error { return chainLikeIstio(path, fmt.Sprintf(`{"edit":%d,"type":"istio-cni"}`, n)) }
	must(t, edit(0))
	ended := make(chan error, 1)
	end := time.Now().Add(time.Second)
	edits := 0
	go func() {
		var err error
		for ; err == nil && time.Now().Before(end); edits++ {
			time.Sleep(2 * time.Millisecond) // between two edits, Manx gets its turn
			text, readErr := os.ReadFile(path)
			if err = readErr; err == nil && !strings.Contains(string(text), fmt.Sprintf(`"edit": %d,`, edits)) {
				err = fmt.Errorf("edit %d is lost: %s", edits, text)
			}
			err = errors.Join(err, edit(edits+1))
		}
		ended <- err
	}()
	writes, contents := 0, [][]byte{manxs(t, 0), manxs(t, 1), manxs(t, 2)}
	for time.Now().Before(end) {
		err := f.put(contents[writes%len(contents)])
		if errors.Is(err, safefile.ErrChanged) {
			continue // Manx's part is started again later
		}
		must(t, err)
		writes++
	}
	must(t, <-ended)
	if edits < 10 || writes < 3 {
		t.Errorf("only %d edits and %d writes", edits, writes)
	}
	// The two do not fight: what Manx has written suits Istio, and what Istio has written suits Manx.
	must(t, f.put(contents[0]))
	must(t, chainLikeIstio(path, istios))
	text := read(t, path)
	for range 3 {
		must(t, f.put(contents[0]))
	}
	if read(t, path) != text {
		t.Errorf("written again: %s", read(t, path))
	}
	entries, err := os.ReadDir(f.Dir)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left: %s", e.Name())
		}
	}
}
