package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore/userinfo"
	"github.com/manxnet/manx/proto/server"
)

// settingsOf lists every setting with its value and its source; used has the variables that set flags, and sourceOf
// says where a variable comes from. Passwords are "(set)", and "(hidden)" in endpoints.
func settingsOf(
	fs *pflag.FlagSet, used map[string]string, sourceOf func(variable string) string,
) (list []server.Setting) {
	fs.VisitAll(func(f *pflag.Flag) {
		envs, ok := envflag.Variables(f)
		if !ok {
			return
		}
		source := "default"
		if f.Changed {
			source = "flag"
		} else if env := used[f.Name]; env != "" {
			source = sourceOf(env)
		}
		value := string(userinfo.Hide([]byte(f.Value.String())))
		secret := f.Name == "cni-network-config" || strings.Contains(f.Name, "password") && // it may have a token
			!strings.HasSuffix(f.Name, "-dir") && !strings.HasSuffix(f.Name, "-file")
		if secret && value != "" {
			value = "(set)"
		}
		list = append(list, server.Setting{Name: f.Name, Value: value, Source: source, Environment: envs})
	})
	return list
}

// explain prints every setting, its value and its source.
func explain(out io.Writer, settings []server.Setting) {
	for _, s := range settings {
		fmt.Fprintf(out, "%-28s %-28q %-34s %s\n", s.Name, s.Value, s.Source, strings.Join(s.Environment, " "))
	}
}
