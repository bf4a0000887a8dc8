package envflag

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// A flag on the command line comes before the environment, the first variable before the second one, and a variable
// without a value does not count.
func TestPrecedence(t *testing.T) {
	var given, first, second, none string
	var pause time.Duration
	flags := pflag.NewFlagSet("program", pflag.ContinueOnError)
	set := Set{flags}
	set.String(&given, "given", "", "a text", "GIVEN")
	set.String(&first, "first", "", "a text", "FIRST", "SECOND")
	set.String(&second, "second", "", "a text", "EMPTY", "SECOND")
	set.String(&none, "none", "default", "a text", "EMPTY")
	set.Duration(&pause, "pause", time.Second, "a time", "PAUSE")
	if err := flags.Parse([]string{"--given=flag"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"GIVEN": "env", "FIRST": "1", "SECOND": "2", "PAUSE": "3s"}
	used, err := FromEnvironment(flags, func(name string) string { return env[name] })
	if err != nil || given != "flag" || first != "1" || second != "2" || none != "default" || pause != 3*time.Second {
		t.Errorf("%q %q %q %q %v, %v", given, first, second, none, pause, err)
	}
	if want := map[string]string{"first": "FIRST", "second": "SECOND", "pause": "PAUSE"}; !maps.Equal(used, want) {
		t.Errorf("used are %v, want %v", used, want)
	}
	if usage := flags.Lookup("second").Usage; usage != "a text [EMPTY, SECOND]" {
		t.Errorf("the usage is %q", usage)
	}
	on := false
	set.Bool(&on, "on", false, "a switch", "ON")
	env["ON"] = "ja"
	if _, err := FromEnvironment(flags, func(name string) string { return env[name] }); err == nil ||
		err.Error() != `environment variable ON = "ja": want true or false` {
		t.Errorf("a wrong value of a switch: %v", err)
	}
	delete(env, "ON")
	env["PAUSE"] = "soon"
	if _, err := FromEnvironment(flags, func(name string) string { return env[name] }); err == nil ||
		!strings.Contains(err.Error(), `environment variable PAUSE = "soon"`) {
		t.Errorf("a wrong value: %v", err)
	}
}
