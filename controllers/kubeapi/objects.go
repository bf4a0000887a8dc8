package kubeapi

import (
	"context"
	"encoding/json"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/controllers/migration"
)

// objects reads and writes objects of all kinds by their paths.
type objects struct{ client rest.Interface }

var _ migration.API = (*objects)(nil)

const (
	// The rate of requests leaves room for others while all objects of a cluster are copied.
	objectQPS   = 200
	objectBurst = 50
	objectPage  = "500"
)

// newObjects returns a client with a rate of its own. It does not connect.
func newObjects(config *rest.Config) (*objects, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = objectQPS, objectBurst
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &objects{core.RESTClient()}, nil
}

// do sends a request, and returns the bytes of the answer.
func (o *objects) do(ctx context.Context, r *rest.Request, body any) ([]byte, error) {
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r.SetHeader("Content-Type", "application/json").Body(raw)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result := r.SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil { // it has the words of the server, unlike that of Raw
		return nil, err
	}
	return result.Raw()
}

// one is do for requests whose answer is an object.
func (o *objects) one(ctx context.Context, r *rest.Request, body any) (*migration.Object, error) {
	raw, err := o.do(ctx, r, body)
	if err != nil {
		return nil, err
	}
	v := new(migration.Object)
	return v, v.UnmarshalJSON(raw)
}

// write sends an object.
func (o *objects) write(
	ctx context.Context, r *rest.Request, v *migration.Object, dry bool,
) (*migration.Object, error) {
	if dry {
		r.Param("dryRun", metav1.DryRunAll)
	}
	return o.one(ctx, r, v)
}

// Get implements migration.API.
func (o *objects) Get(ctx context.Context, path string) (*migration.Object, error) {
	return o.one(ctx, o.client.Get().AbsPath(path), nil)
}

// List implements migration.API. It reads page by page.
func (o *objects) List(ctx context.Context, path string) (list []*migration.Object, err error) {
	for next := ""; ; {
		r := o.client.Get().AbsPath(path).Param("limit", objectPage)
		if next != "" {
			r.Param("continue", next)
		}
		raw, err := o.do(ctx, r, nil)
		if err != nil {
			return nil, err
		}
		page := new(migration.Object)
		if err := page.UnmarshalJSON(raw); err != nil {
			return nil, err
		}
		items, err := page.ToList()
		if err != nil {
			return nil, err
		}
		for i := range items.Items {
			list = append(list, &items.Items[i])
		}
		if next = items.GetContinue(); next == "" {
			return list, nil
		}
	}
}

// Create implements migration.API.
func (o *objects) Create(ctx context.Context, path string, v *migration.Object, dry bool) (*migration.Object, error) {
	return o.write(ctx, o.client.Post().AbsPath(path), v, dry)
}

// Replace implements migration.API.
func (o *objects) Replace(ctx context.Context, path string, v *migration.Object, dry bool) (*migration.Object, error) {
	return o.write(ctx, o.client.Put().AbsPath(path), v, dry)
}

// Delete implements migration.API.
func (o *objects) Delete(ctx context.Context, path string, v *migration.Object) error {
	uid, version := v.GetUID(), v.GetResourceVersion()
	_, err := o.do(ctx, o.client.Delete().AbsPath(path), metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	return err
}

// May implements migration.API.
func (o *objects) May(ctx context.Context, r migration.Right) (bool, error) {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	question := authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: sub, Name: r.Name}}}
	raw, err := o.do(ctx, o.client.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"), question)
	if err != nil {
		return false, err
	}
	var answer authorizationv1.SelfSubjectAccessReview
	err = json.Unmarshal(raw, &answer)
	return answer.Status.Allowed, err
}
