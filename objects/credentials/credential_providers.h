// The providers of credentials, as in AWS's SDKs and Tools Reference Guide ("Standardized credential
// providers"). Each call of a provider reads its source again. A provider that is not configured returns
// nullopt. A configured provider returns credentials or an error. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "objects/credentials/credentials.h"
#include "objects/credentials/profile.h"
#include "objects/http/http_client.h"

namespace tensorcast::objects {

using CredentialProvider = std::function<absl::StatusOr<std::optional<Credentials>>(const RequestContext&)>;

// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.
CredentialProvider EnvironmentCredentials(Environment environment);
// The keys in the profile of AWS's shared files (profile.h). FAILED_PRECONDITION, with the name of the
// setting, if the profile takes its credentials from a role of another profile, a sign-in session or a
// program.
CredentialProvider ProfileCredentials(Environment environment);
// A role that STS grants for a token in a file (AWS_WEB_IDENTITY_TOKEN_FILE, or the profile's setting).
CredentialProvider WebIdentityCredentials(std::shared_ptr<HttpClient> http, Environment environment);
// The keys from the endpoint of an ECS task or EKS pod (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI).
CredentialProvider ContainerCredentials(std::shared_ptr<HttpClient> http, Environment environment);
// The role of an EC2 instance, from its metadata service, version 2 (IMDSv2). On a host without that service
// the call may take about two seconds and returns nullopt; AWS_EC2_METADATA_DISABLED=true avoids the wait.
CredentialProvider InstanceCredentials(std::shared_ptr<HttpClient> http, Environment environment);

}  // namespace tensorcast::objects
