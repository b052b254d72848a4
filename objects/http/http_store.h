// Objects of any HTTP server behind core/source's interfaces: "https://host/path". The version of an object
// is "etag:<ETag>", else "modified:<Last-Modified>", which has a grain of a second and so is not traceable. A
// URL that ends at a '/' is a folder: its objects can be opened, but HTTP has no list of them. A URL with a
// query is refused: it may be signed, and URIs are kept and shown. Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "core/source/object_reader.h"
#include "objects/http/http_client.h"

namespace tensorcast::objects {

struct HttpStoreOptions {
  // Whether a redirect may be followed. Null: none is.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow;
  std::function<bool(const Url&)> may_be_local;  // HttpRequest's
};

std::unique_ptr<ObjectStore> MakeHttpStore(std::shared_ptr<HttpClient> http, HttpStoreOptions options);

}  // namespace tensorcast::objects
