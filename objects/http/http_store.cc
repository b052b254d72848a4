#include "objects/http/http_store.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "objects/http/ranged_reader.h"

namespace tensorcast::objects {
namespace {

// An object is opened by a HEAD request, which tells its size and version. Ranges are read later; each reply
// is compared with both (HttpExchange::CheckRange). Redirects are followed anew for each request, so a signed
// URL behind one may expire in between.
class HttpServer {
 public:
  HttpServer(std::shared_ptr<HttpClient> http, HttpStoreOptions options)
      : http_(std::move(http)), options_(std::move(options)) {}

  // The identity of the object as HEAD shows it. `etag` becomes the ETag for the ranges; it may be empty.
  absl::StatusOr<ObjectIdentity> Head(const RequestContext& context, const Url& url,
                                      std::string& etag) const {
    HttpRequest request = Request("open", url);
    request.method = "HEAD";
    TC_ASSIGN_OR_RETURN(const HttpReply reply, http_->Fetch(context, request));
    TC_RETURN_IF_ERROR(StatusOfReply(request.subject, reply));
    ObjectIdentity identity{.uri = url.Text()};
    etag = reply.Header("etag");
    const std::string_view modified = reply.Header("last-modified");
    if (!absl::SimpleAtoi(reply.Header("content-length"), &identity.bytes)) {
      return absl::DataLossError(absl::StrCat(
          request.subject, ": the server gives no size; download the object and import the file"));
    }
    if (etag.empty() && modified.empty()) {
      return absl::DataLossError(
          absl::StrCat(request.subject,
                       ": the server gives neither ETag nor Last-Modified, so a change of the object would "
                       "not be seen; download the object and import the file"));
    }
    identity.version = etag.empty() ? absl::StrCat("modified:", modified) : absl::StrCat("etag:", etag);
    return identity;
  }

  absl::Status Read(const RequestContext& context, const Url& url, const RangedRead& read) const {
    HttpRequest request = Request("read", url);
    request.read = read;
    TC_ASSIGN_OR_RETURN(const HttpReply reply, http_->Fetch(context, request));
    return StatusOfReply(request.subject, reply);
  }

 private:
  HttpRequest Request(std::string_view verb, const Url& url) const {
    return {.subject = absl::StrCat(verb, " ", url.Text()),
            .url = url,
            .may_follow = options_.may_follow,
            .may_be_local = options_.may_be_local};
  }

  const std::shared_ptr<HttpClient> http_;
  const HttpStoreOptions options_;
};

absl::StatusOr<std::shared_ptr<ObjectReader>> OpenUrl(const RequestContext& context,
                                                      const std::shared_ptr<HttpServer>& server,
                                                      const Url& url) {
  std::string etag;
  TC_ASSIGN_OR_RETURN(const ObjectIdentity identity, server->Head(context, url, etag));
  ObjectTraits traits = NetworkTraits("http");
  traits.traceable = !etag.empty();
  std::function<absl::Status(const RequestContext&)> check;
  // Without an ETag the replies to ranges have nothing to compare, so what HEAD shows is compared again after
  // the reads. Two writes within one second have the same time, hence `traceable`.
  if (etag.empty()) {
    check = [server, url, identity](const RequestContext& check_context) -> absl::Status {
      std::string unused;
      TC_ASSIGN_OR_RETURN(const ObjectIdentity now, server->Head(check_context, url, unused));
      return CheckSameObject(identity, now);
    };
  }
  return MakeRangedReader(
      identity, etag, traits,
      [server, url](const RequestContext& read_context, const RangedRead& read) {
        return server->Read(read_context, url, read);
      },
      std::move(check));
}

absl::StatusOr<Url> ParseObjectUrl(const std::string& uri) {
  TC_ASSIGN_OR_RETURN(Url url, ParseUrl(uri));
  if (url.query.empty()) return url;
  return absl::InvalidArgumentError(absl::StrCat(
      "open ", url.Origin(), url.path,
      ": the URL has a query, which may be a secret signature, and TensorCast keeps and shows URLs; "
      "leave the query out if the server does not need it, or download the object and import the file"));
}

class HttpFolder final : public ObjectFolder {
 public:
  HttpFolder(std::shared_ptr<HttpServer> server, Url url)
      : server_(std::move(server)), url_(std::move(url)) {}

  absl::StatusOr<std::vector<std::string>> List(const RequestContext& /*context*/) const override {
    return absl::UnimplementedError(
        absl::StrCat("list ", url_.Text(), ": HTTP cannot list a folder; name one object"));
  }
  absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& context,
                                                     size_t /*max*/) const override {
    return List(context);
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                     const std::string& name) const override {
    TC_RETURN_IF_ERROR(CheckBelow(url_.Text(), name));
    Url url = url_;
    absl::StrAppend(&url.path, EncodePath(name));
    return OpenUrl(context, server_, url);
  }

 private:
  const std::shared_ptr<HttpServer> server_;
  const Url url_;
};

class HttpStore final : public ObjectStore {
 public:
  explicit HttpStore(std::shared_ptr<HttpServer> server) : server_(std::move(server)) {}

  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const override {
    TC_ASSIGN_OR_RETURN(const Url url, ParseObjectUrl(uri));
    FoundObject found;
    if (absl::EndsWith(url.path, "/")) {
      found.folder = std::make_shared<HttpFolder>(server_, url);
    } else {
      TC_ASSIGN_OR_RETURN(found.object, OpenUrl(context, server_, url));
    }
    return found;
  }

  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& object) const override {
    TC_ASSIGN_OR_RETURN(const Url url, ParseObjectUrl(object.uri));
    TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> opened, OpenUrl(context, server_, url));
    TC_RETURN_IF_ERROR(CheckSameObject(object, opened->identity()));
    return opened;
  }

 private:
  const std::shared_ptr<HttpServer> server_;
};

}  // namespace

std::unique_ptr<ObjectStore> MakeHttpStore(std::shared_ptr<HttpClient> http, HttpStoreOptions options) {
  return std::make_unique<HttpStore>(std::make_shared<HttpServer>(std::move(http), std::move(options)));
}

}  // namespace tensorcast::objects
