#include "objects/open.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/object_uri.h"
#include "objects/credentials/credential_chain.h"
#include "objects/hf/hub_cache.h"
#include "objects/hf/hub_store.h"
#include "objects/http/http_store.h"
#include "objects/s3/s3_store.h"

namespace tensorcast::objects {
namespace {

class Store final : public ObjectStore {
 public:
  explicit Store(OpenOptions options) : files_(std::move(options.files)) {
    if (options.origins.has_value()) origins_ = std::make_shared<const Origins>(*std::move(options.origins));
    const Environment& environment = options.environment;
    const auto http = std::make_shared<HttpClient>(HttpOptions{
        .ca_bundle = environment("AWS_CA_BUNDLE"), .limits = options.limits, .rates = options.rates});
    // Readers outlive this store and call these functions, so the functions share the origins.
    std::function<bool(const Url&)> may_be_local;
    if (origins_ != nullptr) {
      may_be_local = [origins = origins_](const Url& url) { return origins->MayBeLocal(url); };
    }
    const auto follow = [origins = origins_](bool hub) {
      return [origins, hub](const Url& from, const Url& to) {
        return origins == nullptr ? absl::OkStatus() : origins->CheckRedirect(from, to, hub);
      };
    };
    if (options.credentials == nullptr) options.credentials = MakeDefaultCredentials(http, environment);

    stores_["s3"] = MakeS3Store(http, {.endpoint = S3Endpoint(environment),
                                       .region = ConfiguredRegion(environment),
                                       .credentials = options.credentials,
                                       .may_be_local = may_be_local});
    // Google's XML API takes S3's requests, signed with HMAC keys. "auto" stands where S3 has a region.
    stores_["gs"] = MakeS3Store(http, {.scheme = "gs",
                                       .endpoint = "https://storage.googleapis.com",
                                       .region = "auto",
                                       .credentials = options.credentials,
                                       .may_be_local = may_be_local});
    for (const char* const scheme : {"https", "http"}) {
      stores_[scheme] = MakeHttpStore(http, {.may_follow = follow(false), .may_be_local = may_be_local});
    }
    // A client's own token is used alone, even where it is empty: the environment's is this process's.
    HubOptions hub{.token = options.hub_token.has_value() ? *options.hub_token : HubToken(environment),
                   .may_follow = follow(true),
                   .may_be_local = may_be_local,
                   .cache_folder = HubCacheFolder(environment),
                   .files = files_,
                   .offline = HubIsOffline(environment)};
    if (const std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) hub.endpoint = endpoint;
    stores_["hf"] = MakeHubStore(http, std::move(hub));
  }

  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const override {
    TC_ASSIGN_OR_RETURN(const ObjectStore* const store, StoreOf(uri));
    return store->Find(context, uri);
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& object) const override {
    TC_ASSIGN_OR_RETURN(const ObjectStore* const store, StoreOf(object.uri));
    return store->OpenAgain(context, object);
  }

 private:
  // The checks go from what can be said of the text alone to what the operator allows. A URI with a secret in
  // it is refused before any message can quote it.
  // Files have no origin: `files_` has its own rules for what may be read.
  absl::StatusOr<const ObjectStore*> StoreOf(const std::string& uri) const {
    if (files_ != nullptr && !IsObjectUri(uri)) return files_.get();
    if (const std::string_view secret = SecretIn(uri); !secret.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("open ", Printable(ShownUri(uri)), ": ", secret));
    }
    const auto store = stores_.find(uri.substr(0, uri.find("://")));
    if (store == stores_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "open ", Printable(ShownUri(uri)), ": the scheme is not known; write s3, gs, https, http or hf"));
    }
    if (origins_ != nullptr) TC_RETURN_IF_ERROR(origins_->Check(uri));
    return store->second.get();
  }

  const std::shared_ptr<const ObjectStore> files_;              // null: no path is opened
  std::shared_ptr<const Origins> origins_;                      // null: all may be read
  std::map<std::string, std::unique_ptr<ObjectStore>> stores_;  // by scheme
};

}  // namespace

std::string S3Endpoint(const Environment& environment) {
  std::string endpoint = environment("AWS_ENDPOINT_URL_S3");
  return endpoint.empty() ? environment("AWS_ENDPOINT_URL") : endpoint;
}

std::vector<std::string> ConfiguredEndpoints(const Environment& environment) {
  std::vector<std::string> endpoints;
  for (std::string endpoint : {S3Endpoint(environment), environment("HF_ENDPOINT")}) {
    if (!endpoint.empty()) endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

std::shared_ptr<S3Writer> OpenWriter(OpenOptions options) {
  const Environment& environment = options.environment;
  const auto http = std::make_shared<HttpClient>(
      HttpOptions{.ca_bundle = environment("AWS_CA_BUNDLE"), .limits = options.limits});
  // A writer has no may_follow: with an endpoint that was set, S3Client refuses each redirect to another one.
  S3Options s3;
  s3.endpoint = S3Endpoint(environment);
  s3.region = ConfiguredRegion(environment);
  s3.credentials =
      options.credentials != nullptr ? options.credentials : MakeDefaultCredentials(http, environment);
  if (options.origins.has_value()) {
    s3.may_be_local = [origins = *std::move(options.origins)](const Url& url) {
      return origins.MayBeLocal(url);
    };
  }
  return std::make_shared<S3Writer>(std::make_shared<S3Client>(http, std::move(s3)));
}

std::unique_ptr<ObjectStore> OpenObjects(OpenOptions options) {
  return std::make_unique<Store>(std::move(options));
}

}  // namespace tensorcast::objects
