// Package deps has the dependencies that parts of the daemon share.
package deps

import (
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/proto/server"
)

// Deps are the dependencies of a part. Its constructor gets them with the settings of the part.
type Deps struct {
	Node    Node
	Store   datastore.Backend // nil for the parts of the host: they start before it is open
	Tables  *datastore.Tables // of the datastore
	Kernel  *kernel.Conn
	Kube    *rest.Config     // settings of the Kubernetes API; nil if there is none
	Events  *kubenode.Events // about this node; nil without a Kubernetes API
	Control *server.Server
	Log     *zap.Logger
	Bus     *bus.Bus
}

// Node has the facts about this node that many parts need.
type Node struct {
	Name       string
	Kubernetes string             // its name in Kubernetes
	Namespace  string             // of Kubernetes: that of the daemon's pod, and of the Secrets that it reads
	Datastore  string             // the type of the datastore, as of connect.Settings
	RunDir     string             // the folder of the control sockets
	Felix      *felixconfig.Local // the settings of this host, which come before those of FelixConfigurations
}
