package fleet

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that kubectl has
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// DefaultNamespace is where the installation instructions put manx-node.
const DefaultNamespace = "kube-system"

// Cluster is the API of a cluster with the rights of one user.
type Cluster struct {
	config    *rest.Config
	api       *rest.RESTClient
	namespace string
}

// Open returns the cluster of client-go's settings. namespace is that of manx-node. It sends no request.
func Open(config *rest.Config, namespace string) (*Cluster, error) {
	klog.SetLogger(logr.Discard()) // client-go logs errors with the text of a node
	scheme, v1 := runtime.NewScheme(), schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1) // to parse the API's errors
	scheme.AddUnversionedTypes(v1, &metav1.Status{})
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &v1, "/api"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.WarningHandler = rest.NoWarnings{}
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	upgrades := rest.CopyConfig(config)
	upgrades.WrapTransport = nil // a wrapper may send a request again on a connection that cannot be upgraded
	return &Cluster{config: upgrades, api: api, namespace: namespace}, nil
}

// page is the number of pods in one response of the API.
const page = 500

// pods returns the pods of a namespace, of all if it is empty, that the selectors match.
func (c *Cluster) pods(ctx context.Context, namespace, labels, fields string) (list []corev1.Pod, err error) {
	for next := ""; ; {
		r := c.api.Get().Resource("pods").Param("limit", fmt.Sprint(page)).Param("continue", next).
			Param("labelSelector", labels).Param("fieldSelector", fields)
		if namespace != "" {
			r = r.Namespace(namespace)
		}
		var answer corev1.PodList
		if err := decode(r.Do(ctx), &answer); err != nil {
			return nil, err
		}
		list, next = append(list, answer.Items...), answer.Continue
		if next == "" {
			return list, nil
		}
	}
}

// decode reads the JSON of a response.
func decode(result rest.Result, into any) error {
	if err := result.Error(); err != nil { // has the text of the server, unlike that of Raw
		return err
	}
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}
