// The contract of ObjectStore as a test suite. The test of an implementation instantiates ObjectContract with
// a function that makes an ObjectPlace, and compiles object_contract.cc.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/source/object_reader.h"

namespace tensorcast::testing {

// A folder of the store under test, and functions that change its objects without the store.
class ObjectPlace {
 public:
  virtual ~ObjectPlace() = default;
  virtual const ObjectStore& store() const = 0;
  virtual std::string folder() const = 0;  // its URI
  // Writes an object below the folder; `name` may have slashes. An object of this name gets the new bytes and
  // another version.
  virtual void Put(const std::string& name, const std::string& bytes) = 0;
  virtual void Remove(const std::string& name) = 0;
};

using MakeObjectPlace = std::unique_ptr<ObjectPlace> (*)();

class ObjectContract : public ::testing::TestWithParam<MakeObjectPlace> {
 protected:
  void SetUp() override;
  std::string UriOf(const std::string& name) const { return place_->folder() + "/" + name; }
  // Null, with a test failure, if the object cannot be opened.
  std::shared_ptr<ObjectReader> Open(const std::string& name) const;
  // Reads the range and then checks that the object is unchanged, as a source does.
  absl::StatusOr<std::string> Read(ObjectReader& object, uint64_t offset, uint64_t bytes) const;

  std::unique_ptr<ObjectPlace> place_;
  const RequestContext context_ = RequestContext::Background(absl::Minutes(1));
};

}  // namespace tensorcast::testing
