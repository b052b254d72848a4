// Objects of any HTTP server behind core/source's interfaces: "https://host/path". The version of an object
// is "etag:<ETag>", or without an ETag "modified:<Last-Modified>". The latter counts whole seconds, so two
// writes may have the same version: such an object is not traceable (ObjectTraits). A URL that ends with '/'
// is a folder: its objects can be opened, but HTTP cannot list them. A URL with a query is refused, because
// the query may be a signature, and URIs are stored and shown. Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "core/source/object_reader.h"
#include "objects/http/http_client.h"

namespace tensorcast::objects {

struct HttpStoreOptions {
  // OK if a redirect may be followed. Null: no redirect is followed.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow;
  std::function<bool(const Url&)> may_be_local;  // as HttpRequest::may_be_local
};

std::unique_ptr<ObjectStore> MakeHttpStore(std::shared_ptr<HttpClient> http, HttpStoreOptions options);

}  // namespace tensorcast::objects
