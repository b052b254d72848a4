// An ObjectReader for objects of HTTP servers, used by the stores of objects/. Each store passes the
// function that requests a range. Thread-safe if the passed functions are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/source/object_reader.h"
#include "objects/http/http_client.h"

namespace tensorcast::objects {

// Reads the range of the version that was opened. Errors: as ObjectReader::Read.
using ReadRange = std::function<absl::Status(const RequestContext&, const RangedRead&)>;

// The traits of objects that are read over a network: eight concurrent requests of 8 MiB. `lane` must outlive
// the reader: pass a literal.
ObjectTraits NetworkTraits(std::string_view lane);

// `etag`: RangedRead::etag; empty if the server's replies have no ETag of the version. `check` implements
// ObjectReader::CheckUnchanged. It may be null if replies show each change; CheckUnchanged then returns OK.
std::shared_ptr<ObjectReader> MakeRangedReader(
    ObjectIdentity identity, std::string etag, ObjectTraits traits, ReadRange read,
    std::function<absl::Status(const RequestContext&)> check = nullptr);

// INVALID_ARGUMENT unless `name` is a path below `folder`, without empty, "." and ".." components.
absl::Status CheckBelow(std::string_view folder, std::string_view name);

// FAILED_PRECONDITION unless `now` is the same object and version as `before`.
absl::Status CheckSameObject(const ObjectIdentity& before, const ObjectIdentity& now);

}  // namespace tensorcast::objects
