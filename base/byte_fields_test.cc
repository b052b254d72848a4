#include "base/byte_fields.h"

#include "gtest/gtest.h"

namespace tensorcast::byte_fields_test {
namespace {

struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};

struct Point {
  uint16_t x = 0;
  std::string name;
  friend bool operator==(const Point&, const Point&) = default;
};
void Fields(auto& io, Point& point) {
  io(point.x, point.name);
  io.Check(point.name != "bad", "a bad name");
}

struct Shape {
  std::vector<Point> points = {};
  std::variant<uint32_t, Nothing, Point> kind = {};
  friend bool operator==(const Shape&, const Shape&) = default;
};
void Fields(auto& io, Shape& shape) {
  io.Literal("S", "another letter");
  io(shape.points);
  io.template OneOf<1>(shape.kind, "an unknown kind");
}

std::string Written(const Shape& shape) {
  FieldWriter<uint8_t> writer;
  writer(shape);
  return writer.bytes().Take();
}

std::string FailureOf(std::string_view bytes) {
  FieldReader<uint8_t> reader(bytes);
  Shape shape;
  reader(shape);
  return reader.bytes().ok() ? "" : reader.bytes().failure();
}

TEST(ByteFields, Record_IsWrittenInTheOrderOfItsFields) {
  EXPECT_EQ(Written({.points = {{.x = 1, .name = "ab"}}, .kind = uint32_t{7}}),
            std::string("S\1\0\0\0\1\0\2ab\1\7\0\0\0", 15));
  EXPECT_EQ(Written({.kind = Nothing()}), std::string("S\0\0\0\0\2", 6));
}

TEST(ByteFields, Record_SurvivesRoundTrip) {
  for (const Shape& shape : {Shape{.points = {{1, "a"}, {2, ""}}, .kind = Point{3, "c"}},
                             Shape{.kind = Nothing()}, Shape{.kind = uint32_t{9}}}) {
    const std::string bytes = Written(shape);
    FieldReader<uint8_t> reader(bytes);
    Shape read;
    reader(read);
    EXPECT_TRUE(reader.bytes().AtEnd());
    EXPECT_EQ(read, shape);
  }
}

TEST(ByteFields, WrongBytes_FailWithTheFirstReason) {
  EXPECT_EQ(FailureOf("T"), "another letter");
  EXPECT_EQ(FailureOf(std::string("S\2\0\0\0\1\0\0\1\0", 10)), "more items than the bytes hold");
  EXPECT_EQ(FailureOf(std::string("S\0\0\0\0\0", 6)), "an unknown kind");
  EXPECT_EQ(FailureOf(std::string("S\0\0\0\0\4", 6)), "an unknown kind");
  EXPECT_EQ(FailureOf(std::string("S\1\0\0\0\1\0\3bad\2", 12)), "a bad name");
  EXPECT_EQ(FailureOf(std::string("S\0\0\0\0\1\1", 7)), "a field past the end");
}

TEST(ByteFields, HugeCount_TakesNoMemory) {
  FieldReader<uint8_t> reader(std::string_view("S\xff\xff\xff\xff", 5));
  Shape shape;
  reader(shape);
  EXPECT_TRUE(shape.points.empty());
  EXPECT_FALSE(reader.bytes().ok());
}

}  // namespace
}  // namespace tensorcast::byte_fields_test
