// Objects of S3-compatible buckets behind core/source's interfaces. URIs are "s3://bucket/key"; the key is
// not encoded. Folders are: a bucket, a name that ends with '/', and a name with objects below it.
// Thread-safe.
//
// In a bucket that keeps versions, an object's version is "version:<VersionId>". That version stays readable
// while the bucket keeps it. In other buckets the version is "etag:<ETag>", and the next write replaces
// it.
#pragma once

#include <memory>

#include "core/source/object_reader.h"
#include "objects/s3/s3_client.h"

namespace tensorcast::objects {

std::unique_ptr<ObjectStore> MakeS3Store(std::shared_ptr<HttpClient> http, S3Options options);

}  // namespace tensorcast::objects
