package model

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
)

func defaultNetworkPolicy(*v3.NetworkPolicy)                                 {}
func defaultGlobalNetworkPolicy(*v3.GlobalNetworkPolicy)                     {}
func defaultStagedNetworkPolicy(*v3.StagedNetworkPolicy)                     {}
func defaultStagedGlobalNetworkPolicy(*v3.StagedGlobalNetworkPolicy)         {}
func defaultStagedKubernetesNetworkPolicy(*v3.StagedKubernetesNetworkPolicy) {}

func checkNetworkPolicy(*check, *v3.NetworkPolicy)                                 {}
func checkGlobalNetworkPolicy(*check, *v3.GlobalNetworkPolicy)                     {}
func checkStagedNetworkPolicy(*check, *v3.StagedNetworkPolicy)                     {}
func checkStagedGlobalNetworkPolicy(*check, *v3.StagedGlobalNetworkPolicy)         {}
func checkStagedKubernetesNetworkPolicy(*check, *v3.StagedKubernetesNetworkPolicy) {}
func checkNetworkSet(*check, *v3.NetworkSet)                                       {}
func checkGlobalNetworkSet(*check, *v3.GlobalNetworkSet)                           {}
func checkHostEndpoint(*check, *v3.HostEndpoint)                                   {}
func checkKubernetesNetworkPolicy(*check, *networkingv1.NetworkPolicy)             {}
