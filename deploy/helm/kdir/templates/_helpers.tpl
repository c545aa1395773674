{{- define "kdir.name" -}}
{{- if contains "kdir" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-kdir" (.Release.Name | trunc 47 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "kdir.selector" -}}
app.kubernetes.io/name: kdir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kdir.labels" -}}
{{ include "kdir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "kdir.image" -}}
{{ required "image.repository: needed; build deploy/Dockerfile and push it to a registry of yours" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Name of a server's pod in DNS; @POD@ is the pod's name, which its init container fills in. */ -}}
{{- define "kdir.podHost" -}}
@POD@.{{ include "kdir.name" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "kdir.store" -}}
{{- if eq .Values.store.type "etcd" -}}
{{ required "store.etcd.address: needed for the store \"etcd\"" .Values.store.etcd.address }}
{{- else -}}
{{- if gt (int .Values.replicas) 1 }}{{ fail (printf "replicas: found %d; several servers share a store of the type \"etcd\"" (int .Values.replicas)) }}{{ end -}}
sqlite:////var/lib/kdir/kdir.sqlite
{{- end }}
{{- end }}

{{- /* The chart's keys stand before what the values say, since that may end in a table. */ -}}
{{- define "kdir.config" -}}
{{- range $key := list "listen" "advertise" "metrics" "store" }}
{{- if regexMatch (printf "(?m)^\\s*%s\\s*=" $key) (regexReplaceAll "(?ms)^\\s*\\[.*" $.Values.config "") }}{{ fail (printf "config: %s is written by the chart" $key) }}{{ end }}
{{- end }}
{{- if regexMatch "(?m)^\\s*\\[tls\\]" .Values.config }}{{ fail "config: [tls] is written by the chart, from the values in tls" }}{{ end -}}
listen = "0.0.0.0:{{ .Values.port }}"
advertise = ["{{ include "kdir.podHost" . }}:{{ .Values.port }}"]
metrics = "127.0.0.1:9420"
store = {{ include "kdir.store" . | quote }}

{{ .Values.config | trim }}

[tls]
cert = "/etc/kdir/tls/tls.crt"
key = "/etc/kdir/tls/tls.key"
ca = "/etc/kdir/tls/ca.crt"
client_auth = "{{ .Values.tls.clientAuth }}"
{{- end }}

{{- define "kdir.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Probe of one path of the health port, which is on loopback: past a proxy of the environment. */ -}}
{{- define "kdir.probe" -}}
exec:
  command:
    - python3
    - -c
    - from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open("http://127.0.0.1:9420/{{ . }}", timeout=5)
timeoutSeconds: 10
{{- end }}

{{- define "kdir.mounts" -}}
- {name: config, mountPath: /etc/kdir/config}
- {name: tls, mountPath: /etc/kdir/tls, readOnly: true}
- {name: data, mountPath: /var/lib/kdir}
- {name: tmp, mountPath: /tmp}
{{- range .Values.secrets }}
- {name: {{ printf "secret-%s" . | quote }}, mountPath: {{ printf "/etc/kdir/secrets/%s" . | quote }}, readOnly: true}
{{- end }}
{{- end }}
