/* Lists an image, or writes one of its files to standard output:  read IMAGE [PATH]. The image may be a URL. */
#include <floe.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, floe_error_text());
	return 1;
}

static int print_entry(const floe_entry *entry, void *context)
{
	floe_stat stat;
	int error = floe_stat_inode(context, entry->inode, &stat);

	if (error)
		return error;
	printf("%6o %10llu %s\n", stat.mode, (unsigned long long)stat.size, entry->name);
	return 0;
}

static int print_file(const floe_image *image, uint64_t inode)
{
	char buffer[65536];
	uint64_t offset = 0;

	for (;;) {
		ssize_t len = floe_pread(image, inode, buffer, sizeof(buffer), offset);

		if (len < 0)
			return failed("read");
		if (len == 0)
			return 0;
		fwrite(buffer, 1, (size_t)len, stdout);
		offset += (uint64_t)len;
	}
}

int main(int argc, char **argv)
{
	floe_image *image;
	uint64_t inode;
	int result = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s IMAGE [PATH]\n", argv[0]);
		return 2;
	}
	image = strstr(argv[1], "://") ? floe_open_url(argv[1], NULL) : floe_open(argv[1], NULL);
	if (!image)
		return failed(argv[1]);
	if (floe_lookup(image, argc > 2 ? argv[2] : "/", 1, &inode))
		result = failed(argv[2]);
	else if (argc > 2)
		result = print_file(image, inode);
	else if (floe_readdir(image, inode, print_entry, image))
		result = failed("/");
	floe_close(image);
	return result;
}
