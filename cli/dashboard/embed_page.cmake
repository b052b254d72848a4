# cmake -DOUTPUT=FILE.cc -DFOLDER=page -P embed_page.cmake: writes EmbeddedPage() with every file of FOLDER.
file(GLOB_RECURSE files RELATIVE "${FOLDER}" "${FOLDER}/*")
list(SORT files)
set(arrays "")
set(entries "")
set(number 0)
foreach(name IN LISTS files)
  if(name MATCHES "(^|/)README\\.md$")
    continue()
  endif()
  file(READ "${FOLDER}/${name}" hex HEX)
  file(SHA256 "${FOLDER}/${name}" hash)
  string(SUBSTRING "${hash}" 0 32 hash)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  # The zero keeps an empty file from being an array of no size.
  string(APPEND arrays "const unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND entries "    {\"${name}\", TextOf(kFile${number}, ${size}), \"${hash}\"},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cli/dashboard/embed_page.cmake.
#include \"cli/dashboard/dashboard.h\"

namespace tensorcast::dashboard {
namespace {

[[maybe_unused]] std::string_view TextOf(const unsigned char* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

${arrays}
const PageFile kPage[] = {
${entries}    {\"\", \"\", \"\"}};

}  // namespace

std::span<const PageFile> EmbeddedPage() { return std::span(kPage).first(${number}); }

}  // namespace tensorcast::dashboard
")
