// The library's schema, for kvcast/runtimes/native/build.py, which compares it with the file that it reads.
#include "export.hpp"

#define VALUE(NAME, NUMBER) #NAME "=" #NUMBER ";"
#define FIELD(TYPE, NAME) #TYPE " " #NAME ";"
#define ENUM(NAME, VALUES) #NAME "{" VALUES "}"
#define STRUCT(NAME, FIELDS) #NAME "{" FIELDS "}"
#define INSTRUCTION(CODE, NAME, FIELDS) #CODE "{" FIELDS "}"

EXPORT const char* kvcast_schema() {
  return
#include "instructions.def"
      ;
}
