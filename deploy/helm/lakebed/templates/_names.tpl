{{- define "lakebed.name" -}}
{{ printf "%s-lakebed" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- define "lakebed.selector" -}}
app.kubernetes.io/name: lakebed
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "lakebed.labels" -}}
{{ include "lakebed.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
{{- define "lakebed.secret" -}}
{{ .Values.secret.existing | default (include "lakebed.name" .) }}
{{- end }}
{{- /* Pods share nothing but the database and the object store, so a file of one pod is no database. */}}
{{- define "lakebed.check" -}}
{{- $uri := (.Values.environment).LAKEBED_STORE_URI | default ((.Values.secret).values).LAKEBED_STORE_URI | default "" }}
{{- if or (regexMatch "(?i)^(sqlite|mem)\\b" $uri) (and $uri (not (contains "://" $uri))) }}
{{- fail "LAKEBED_STORE_URI: pods cannot share a file or memory; name a database server, such as postgres://" }}
{{- end }}
{{- $objects := (.Values.environment).LAKEBED_BLOCKSTORE | default ((.Values.secret).values).LAKEBED_BLOCKSTORE | default "local" }}
{{- if and (eq $objects "local") (not .Values.data.existingClaim) }}
{{- fail "LAKEBED_BLOCKSTORE local: objects would be lost with the pod; set data.existingClaim to a claim that all pods may write" }}
{{- end }}
{{- end }}
