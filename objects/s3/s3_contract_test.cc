// S3 as core/testing's contract of object stores wants it, signed, with a good server and with one that
// ignores If-Match.
#include <memory>

#include "core/testing/object_contract.h"
#include "objects/s3/s3_store.h"
#include "objects/testing/fake_s3.h"

namespace tensorcast::testing::s3_contract_test {
namespace {

using objects::Credentials;
using objects::FixedCredentials;
using objects::HttpClient;
using objects::S3Options;
using objects::Secret;

const Credentials& Keys() {
  static const Credentials keys{.access_key_id = "KEY", .secret_access_key = Secret("secret")};
  return keys;
}

class Place final : public ObjectPlace {
 public:
  explicit Place(bool ignores_if_match)
      : s3_({.keys = Keys(), .ignores_if_match = ignores_if_match, .page = 2}),
        store_(objects::MakeS3Store(
            std::make_shared<HttpClient>(),
            {.endpoint = s3_.url(), .credentials = std::make_shared<FixedCredentials>(Keys())})) {}

  const ObjectStore& store() const override { return *store_; }
  std::string folder() const override { return "s3://bucket/folder"; }
  void Put(const std::string& name, const std::string& bytes) override { s3_.Put("folder/" + name, bytes); }
  void Remove(const std::string& name) override { s3_.Remove("folder/" + name); }

 private:
  objects::testing::FakeS3 s3_;
  const std::unique_ptr<ObjectStore> store_;
};

template <bool kIgnoresIfMatch>
std::unique_ptr<ObjectPlace> Make() {
  return std::make_unique<Place>(kIgnoresIfMatch);
}

INSTANTIATE_TEST_SUITE_P(S3, ObjectContract, ::testing::Values(Make<false>));
INSTANTIATE_TEST_SUITE_P(LaxS3, ObjectContract, ::testing::Values(Make<true>));

}  // namespace
}  // namespace tensorcast::testing::s3_contract_test
