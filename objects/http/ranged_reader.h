// An ObjectReader for an object of a server, shared by all stores that read over HTTP. Each store gives the
// function that requests a range. Thread-safe, provided that the given functions are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/source/object_reader.h"
#include "objects/http/http_client.h"

namespace tensorcast::objects {

// Reads the range in the version that was opened, or fails as ObjectReader::Read does.
using ReadRange = std::function<absl::Status(const RequestContext&, const RangedRead&)>;

// The traits of objects that are read over a network. Latency dominates there, so several requests run at the
// same time, and each brings several MiB. `lane` must outlive the reader: pass a literal.
ObjectTraits NetworkTraits(std::string_view lane);

// `etag` identifies the version in RangedRead; empty if the server's replies have no ETag to compare. `check`
// tells whether the object is still the same, for servers that do not show a change in their reads; else
// null.
std::shared_ptr<ObjectReader> MakeRangedReader(
    ObjectIdentity identity, std::string etag, ObjectTraits traits, ReadRange read,
    std::function<absl::Status(const RequestContext&)> check = nullptr);

// INVALID_ARGUMENT unless `name` is a path below `folder`, without empty, "." and ".." components.
absl::Status CheckBelow(std::string_view folder, std::string_view name);

// FAILED_PRECONDITION unless `now` is the same object and version as `before`.
absl::Status CheckSameObject(const ObjectIdentity& before, const ObjectIdentity& now);

}  // namespace tensorcast::objects
