#include "objects/credentials/credential_providers.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "objects/http/local_address.h"
#include "objects/http/url.h"
#include "objects/http/xml.h"

namespace tensorcast::objects {
namespace {

using Found = absl::StatusOr<std::optional<Credentials>>;

constexpr char kInstanceMetadata[] = "http://169.254.169.254";
constexpr char kTaskMetadata[] = "http://169.254.170.2";
// A metadata service is on the host itself or it does not exist, so a short time is enough to find out.
constexpr HttpLimits kMetadataLimits = {
    .connect = absl::Seconds(1), .stall = absl::Seconds(2), .attempts = 2};

absl::StatusOr<Credentials> Complete(std::string_view from, std::string_view id, std::string_view secret,
                                     std::string_view token, std::string_view expiration) {
  if (id.empty() || secret.empty()) {
    return absl::UnavailableError(
        absl::StrCat("get credentials from ", from,
                     id.empty() ? ": the access key id is missing; " : ": the secret key is missing; ",
                     "give this source an access key id and a secret key"));
  }
  Credentials credentials{
      .access_key_id = std::string(id), .secret_access_key = Secret(secret), .session_token = Secret(token)};
  std::string error;
  if (!expiration.empty() && !absl::ParseTime(absl::RFC3339_full, expiration, &credentials.expires, &error)) {
    return absl::UnavailableError(
        absl::StrCat("get credentials from ", from,
                     ": the expiration is not an RFC 3339 time; correct the expiration in this source"));
  }
  return credentials;
}

std::string TextOf(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
}

absl::StatusOr<Credentials> ParseCredentials(std::string_view from, const std::string& text) {
  // Malformed JSON becomes a value that is not an object, and so lacks both keys: Complete reports that.
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return Complete(from, TextOf(json, "AccessKeyId"), TextOf(json, "SecretAccessKey"), TextOf(json, "Token"),
                  TextOf(json, "Expiration"));
}

// A request to a service of this host, past any proxy.
absl::StatusOr<HttpReply> AskMetadata(const RequestContext& context, HttpClient& http,
                                      std::string_view subject, std::string_view method, std::string_view url,
                                      HttpHeaders headers) {
  // A proxy does not reach the metadata service of this host, and may answer with the metadata of its own
  // host.
  HttpRequest request{.subject = std::string(subject),
                      .method = std::string(method),
                      .headers = std::move(headers),
                      .use_proxy = false,
                      .limits = kMetadataLimits};
  TC_ASSIGN_OR_RETURN(request.url, ParseUrl(url));
  return http.Fetch(context, request);
}

Found FromWebIdentity(const RequestContext& context, HttpClient& http, const Environment& environment) {
  constexpr char kFrom[] = "web identity";
  // The three settings come from one place. A role of the profile with a token of the environment would be a
  // pair that was never configured.
  std::string file = environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  std::string role = environment("AWS_ROLE_ARN"), session = environment("AWS_ROLE_SESSION_NAME");
  if (file.empty()) {
    TC_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(environment));
    file = profile.Get("web_identity_token_file");
    role = profile.Get("role_arn");
    session = profile.Get("role_session_name");
  }
  if (file.empty() || role.empty()) return std::nullopt;
  // The file is read at each renewal: Kubernetes replaces the token before it expires.
  const absl::StatusOr<std::string> token = ReadSmallFile(file);
  if (!token.ok()) return Annotate(token.status(), "get credentials from web identity");

  std::string endpoint = environment("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) endpoint = environment("AWS_ENDPOINT_URL");
  if (endpoint.empty()) {
    endpoint = absl::StrCat("https://sts.", ConfiguredRegion(environment), ".amazonaws.com/");
  }
  // The token goes in the body, since servers log URLs.
  const std::string body = EncodeQuery({{"Action", "AssumeRoleWithWebIdentity"},
                                        {"RoleArn", role},
                                        {"RoleSessionName", session.empty() ? "tensorcast" : session},
                                        {"Version", "2011-06-15"},
                                        {"WebIdentityToken", *token}});
  HttpRequest request{.subject = "get credentials from web identity",
                      .method = "POST",
                      .headers = {{"Content-Type", "application/x-www-form-urlencoded"}},
                      .body = body};
  TC_ASSIGN_OR_RETURN(request.url, ParseUrl(endpoint));
  TC_ASSIGN_OR_RETURN(const HttpReply reply, http.Fetch(context, request));
  // <AssumeRoleWithWebIdentityResponse> has a result with the keys, <ErrorResponse> an <Error>.
  const XmlElement response = ParseXml(reply.body).value_or(XmlElement());
  for (const XmlElement& result : response.children) {
    if (result.name == "Error") {
      TC_RETURN_IF_ERROR(StatusOfReply(request.subject, reply, result.TextOf("Code")));
    }
    for (const XmlElement& keys : result.children) {
      if (reply.status != 200 || keys.name != "Credentials") continue;
      return Complete(kFrom, keys.TextOf("AccessKeyId"), keys.TextOf("SecretAccessKey"),
                      keys.TextOf("SessionToken"), keys.TextOf("Expiration"));
    }
  }
  TC_RETURN_IF_ERROR(StatusOfReply(request.subject, reply));
  return Complete(kFrom, "", "", "", "");
}

// Refuses what AWS's tools take credentials from and this program does not: a role that is assumed with the
// keys of another profile, which goes before the profile's own keys; and, where the profile has no keys,
// sign-in sessions and programs.
absl::Status CheckSupported(const Profile& profile) {
  std::vector<std::string_view> settings = {"source_profile", "credential_source"};
  if (profile.Get("aws_access_key_id").empty()) {
    settings.insert(settings.end(), {"sso_session", "sso_start_url", "login_session", "credential_process"});
  }
  for (const std::string_view setting : settings) {
    if (profile.Get(setting).empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("get credentials from profile ", profile.name, ": the profile has ", setting,
                     ", which TensorCast does not support; run `aws configure export-credentials --profile ",
                     profile.name, " --format env`, and set the environment variables that it prints"));
  }
  return absl::OkStatus();
}

// The token of the container goes only to this host, or by https (as AWS's own tools have it).
absl::Status CheckContainerUri(const Url& url) {
  // ECS uses 169.254.170.2, and EKS the other two addresses. Other link-local addresses are refused, since
  // the instance's metadata service has one.
  const bool pod = url.host == "169.254.170.2" || url.host == "169.254.170.23" || url.host == "fd00:ec2::23";
  if (url.scheme == "https" || pod || (IsLocalHost(url.host) && !absl::StartsWith(url.host, "169.254."))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("get credentials from the container's endpoint: ", url.Origin(),
                   " does not use https and is not on this host; correct "
                   "AWS_CONTAINER_CREDENTIALS_FULL_URI"));
}

Found FromContainer(const RequestContext& context, HttpClient& http, const Environment& environment) {
  constexpr char kSubject[] = "get credentials from the container's endpoint";
  const std::string relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string uri = relative.empty() ? environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")
                                           : absl::StrCat(kTaskMetadata, relative);
  if (uri.empty()) return std::nullopt;
  TC_ASSIGN_OR_RETURN(const Url url, ParseUrl(uri));
  TC_RETURN_IF_ERROR(CheckContainerUri(url));
  std::string token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  // A file wins over the variable: its token is replaced while this process runs.
  if (const std::string file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    TC_ASSIGN_OR_RETURN(token, ReadSmallFile(file));
  }
  HttpHeaders headers;
  if (!token.empty()) headers.emplace_back("Authorization", token);
  TC_ASSIGN_OR_RETURN(const HttpReply reply,
                      AskMetadata(context, http, kSubject, "GET", uri, std::move(headers)));
  TC_RETURN_IF_ERROR(StatusOfReply(kSubject, reply));
  return ParseCredentials("the container's endpoint", reply.body);
}

Found FromInstance(const RequestContext& context, HttpClient& http, const Environment& environment) {
  constexpr char kSubject[] = "get credentials from the instance's metadata";
  if (absl::EqualsIgnoreCase(environment("AWS_EC2_METADATA_DISABLED"), "true")) return std::nullopt;
  std::string endpoint = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = kInstanceMetadata;
  // IMDSv2: the other requests need a token that only a PUT gives. This one is good for six hours, and each
  // look-up of keys asks for a new one.
  const absl::StatusOr<HttpReply> token =
      AskMetadata(context, http, kSubject, "PUT", absl::StrCat(endpoint, "/latest/api/token"),
                  {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}});
  TC_RETURN_IF_ERROR(context.Check(kSubject));
  if (!token.ok() || token->status != 200) return std::nullopt;  // not an instance

  const auto get = [&](std::string_view name) {
    return AskMetadata(context, http, kSubject, "GET",
                       absl::StrCat(endpoint, "/latest/meta-data/iam/security-credentials/", name),
                       {{"X-aws-ec2-metadata-token", token->body}});
  };
  // The list of roles has one line: an instance has one role at most.
  TC_ASSIGN_OR_RETURN(const HttpReply roles, get(""));
  if (roles.status == 404) return std::nullopt;  // an instance without a role
  TC_RETURN_IF_ERROR(StatusOfReply(kSubject, roles));
  const std::string role(absl::StripAsciiWhitespace(roles.body.substr(0, roles.body.find('\n'))));
  TC_ASSIGN_OR_RETURN(const HttpReply reply, get(EncodeComponent(role)));
  TC_RETURN_IF_ERROR(StatusOfReply(kSubject, reply));
  return ParseCredentials("the instance's metadata", reply.body);
}

}  // namespace

CredentialProvider EnvironmentCredentials(Environment environment) {
  return [environment = std::move(environment)](const RequestContext&) -> Found {
    const std::string id = environment("AWS_ACCESS_KEY_ID"), secret = environment("AWS_SECRET_ACCESS_KEY");
    if (id.empty() && secret.empty()) return std::nullopt;
    return Complete("the environment", id, secret, environment("AWS_SESSION_TOKEN"), "");
  };
}

CredentialProvider ProfileCredentials(Environment environment) {
  return [environment = std::move(environment)](const RequestContext&) -> Found {
    TC_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(environment));
    TC_RETURN_IF_ERROR(CheckSupported(profile));
    const std::string id = profile.Get("aws_access_key_id"), secret = profile.Get("aws_secret_access_key");
    if (id.empty() && secret.empty()) return std::nullopt;
    return Complete(absl::StrCat("profile ", profile.name), id, secret, profile.Get("aws_session_token"), "");
  };
}

CredentialProvider WebIdentityCredentials(std::shared_ptr<HttpClient> http, Environment environment) {
  return [http = std::move(http), environment = std::move(environment)](const RequestContext& context) {
    return FromWebIdentity(context, *http, environment);
  };
}

CredentialProvider ContainerCredentials(std::shared_ptr<HttpClient> http, Environment environment) {
  return [http = std::move(http), environment = std::move(environment)](const RequestContext& context) {
    return FromContainer(context, *http, environment);
  };
}

CredentialProvider InstanceCredentials(std::shared_ptr<HttpClient> http, Environment environment) {
  return [http = std::move(http), environment = std::move(environment)](const RequestContext& context) {
    return FromInstance(context, *http, environment);
  };
}

}  // namespace tensorcast::objects
